from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from pipeline.graph import Graph
from pipeline.stage import Node, UserError
from stages.catalog import CATALOG
from stages.config import Config, VocabConfig
from stages.text.tokenizer_files import vocab_bytes, write_tokenizer
from stages.text.wordpiece import Tokenizer
from stages.text.words import Normalisation
from stages.vocabulary_source import list_vocabulary, vocabulary_source

VOCAB = ["[PAD]", "[unused0]", "a", "b", "[UNK]", "##b", "[CLS]", "the", "[SEP]", "[MASK]"]
CASED = Normalisation(False, False)


def config(**values: object) -> VocabConfig:
    return VocabConfig.model_validate(values)


def vocab_node(**values: object) -> Node:
    whole = Config.model_validate({"corpus": {"kind": "python_docs"}, "vocab": values})
    return Graph(CATALOG.nodes(whole))["vocab"]


def test_the_files_settings_win(tmp_path: Path) -> None:
    write_tokenizer(tmp_path, Tokenizer(VOCAB, CASED, 50), model_max_length=64)
    source = vocabulary_source(config(**{"from": str(tmp_path)}), Path("/"))
    assert source.tokens == tuple(VOCAB)
    assert source.normalisation == CASED and source.max_word_characters == 50


def test_content_counts_and_not_the_place(tmp_path: Path) -> None:
    file = tmp_path / "a/vocab.txt"
    file.parent.mkdir()
    file.write_bytes(vocab_bytes(VOCAB))
    shutil.copytree(file.parent, tmp_path / "b")
    (tmp_path / "b/vocab.txt").write_bytes(b"\xef\xbb\xbf" + vocab_bytes(VOCAB))
    one, other = (list_vocabulary(config(**{"from": name}), tmp_path) for name in ("a", "b"))
    assert one.entries == other.entries
    file.write_bytes(vocab_bytes([*VOCAB, "new"]))
    assert list_vocabulary(config(**{"from": "a"}), tmp_path).entries != one.entries
    uncased = list_vocabulary(config(**{"from": "b", "strip_accents": False}), tmp_path)
    assert uncased.entries != other.entries


def test_what_is_fingerprinted() -> None:
    node = vocab_node(**{"from": "/somewhere/vocab.txt"}, size=3)
    assert node.config == {"vocab": {"from": "listed"}}
    assert node.settings["vocab"]["from"] == "/somewhere/vocab.txt"
    assert node.raw is not None
    node = vocab_node(size=100)
    assert node.config["vocab"]["from"] is None and node.raw is None


def test_plan_refuses(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"vocab\.from.*no such file"):
        vocabulary_source(config(**{"from": "nowhere"}), tmp_path)
    cased = [*VOCAB, "The", "Of", "And"]
    (tmp_path / "vocab.txt").write_bytes(vocab_bytes(cased))
    with pytest.raises(UserError, match=r"vocab\.lowercase=true.*set vocab\.lowercase"):
        vocabulary_source(config(**{"from": "vocab.txt"}), tmp_path)
    source = vocabulary_source(config(**{"from": "vocab.txt"}, lowercase=False), tmp_path)
    assert source.normalisation == CASED
    with pytest.raises(UserError, match=r"vocab\.required: 'Covid'"):
        vocabulary_source(config(required=["Covid"]), tmp_path)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"required": ["a", "a"]}, "'a' stands twice"),
        ({"required": ["[MASK]"]}, "in every vocabulary anyway"),
        ({"required": ["two words"]}, "is not one word"),
        ({"required": ["a", "b"], "size": 7}, "5 special and 2 required tokens"),
        ({"required": ["a"], "from": "x"}, "used as it is"),
    ],
)
def test_the_config_refuses(values: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        config(**values)


def test_the_key_is_from_wherever_a_person_sees_it() -> None:
    assert config(**{"from": "x"}).model_dump()["from"] == "x"
    assert "from" in Config.model_json_schema()["$defs"]["VocabConfig"]["properties"]
