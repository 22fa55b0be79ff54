from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from stages.text.existing import check_case, check_required, read_existing
from stages.text.special_tokens import SPECIAL_TOKENS
from stages.text.tokenizer_files import vocab_bytes, write_tokenizer
from stages.text.wordpiece import Tokenizer
from stages.text.words import Normalisation
from tests.oracle.real_text import google_vocab

# As in bert-base-uncased, the special tokens are not the first five.
VOCAB = ["[PAD]", "[unused0]", "a", "b", "[UNK]", "##b", "[CLS]", "the", "[SEP]", "[MASK]"]
UNCASED, CASED = Normalisation(), Normalisation(False, False)


def folder(tmp_path: Path, normalisation: Normalisation = UNCASED) -> Path:
    write_tokenizer(tmp_path, Tokenizer(VOCAB, normalisation, 50), model_max_length=64)
    return tmp_path


@pytest.mark.parametrize("normalisation", [UNCASED, CASED, Normalisation(True, False, False)])
def test_our_own_folder_comes_back(tmp_path: Path, normalisation: Normalisation) -> None:
    found = read_existing(folder(tmp_path, normalisation))
    assert list(found.tokens) == VOCAB
    assert found.normalisation(Normalisation(False, True, True)) == normalisation
    assert found.max_word_characters == 50
    assert found.files == ("tokenizer.json", "tokenizer_config.json")
    assert read_existing(tmp_path / "tokenizer.json").tokens == found.tokens


def test_a_plain_list_says_nothing_of_case(tmp_path: Path) -> None:
    (tmp_path / "vocab.txt").write_bytes(vocab_bytes(VOCAB).replace(b"\n", b"\r\n"))
    for path in (tmp_path, tmp_path / "vocab.txt"):
        found = read_existing(path)
        assert list(found.tokens) == VOCAB
        assert found.lowercase is None and found.normalisation(CASED) == CASED


def test_the_switches_win_over_the_pipeline_as_in_transformers(tmp_path: Path) -> None:
    folder(tmp_path, UNCASED)
    config = tmp_path / "tokenizer_config.json"
    config.write_text('{"do_lower_case": false, "tokenizer_class": "BertTokenizer"}')
    assert read_existing(tmp_path).normalisation(UNCASED) == CASED
    config.write_text('{"do_lower_case": false, "tokenizer_class": "PreTrainedTokenizerFast"}')
    assert read_existing(tmp_path).normalisation(CASED) == UNCASED
    config.write_text("{}")
    assert read_existing(tmp_path).normalisation(CASED) == UNCASED


def test_tokens_added_later_keep_their_ids(tmp_path: Path) -> None:
    file = folder(tmp_path) / "tokenizer.json"
    content = json.loads(file.read_text())
    content["added_tokens"].append({"id": len(VOCAB), "content": "<new>"})
    file.write_text(json.dumps(content))
    assert read_existing(file).tokens == (*VOCAB, "<new>")


def change(path: str, value: Any) -> Any:
    def apply(content: dict[str, Any]) -> None:
        *parents, key = path.split("/")
        for parent in parents:
            content = content[parent]
        content[key] = value

    return apply


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (change("model/type", "BPE"), "its model is BPE"),
        (change("model/unk_token", "<unk>"), "unknown token is <unk>"),
        (change("pre_tokenizer", {"type": "ByteLevel"}), "pre-tokeniser is ByteLevel"),
        (change("normalizer", {"type": "NFC"}), "normaliser is NFC"),
        (change("model/vocab/the", 99), "no token has the id 7"),
        (change("model/vocab/the", 0), "two tokens have one id"),
        (change("model/vocab", ["a"]), "no mapping"),
        (change("added_tokens", [{"id": len(VOCAB), "content": "a\nb"}]), "cannot hold it"),
    ],
)
def test_other_tokenizers_are_refused(tmp_path: Path, fault: Any, message: str) -> None:
    file = folder(tmp_path) / "tokenizer.json"
    content = json.loads(file.read_text())
    fault(content)
    file.write_text(json.dumps(content))
    with pytest.raises(ValueError, match=message):
        read_existing(tmp_path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"[PAD]\n[UNK]\na\n", r"lacks .* \[CLS\] \[SEP\] \[MASK\]"),
        (vocab_bytes([*VOCAB, "a"]), "'a' stands in line 3 too"),
        (b"\xff\n", "not UTF-8"),
    ],
)
def test_wrong_lists_are_refused(tmp_path: Path, content: bytes, message: str) -> None:
    file = tmp_path / "vocab.txt"
    file.write_bytes(content)
    with pytest.raises(ValueError, match=message) as refusal:
        read_existing(file)
    assert str(file) in str(refusal.value)


def test_what_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no such file"):
        read_existing(tmp_path / "nowhere")
    with pytest.raises(ValueError, match=r"neither tokenizer\.json nor vocab\.txt"):
        read_existing(tmp_path)
    (tmp_path / "tokenizer.json").write_text("[")
    with pytest.raises(ValueError, match="no JSON"):
        read_existing(tmp_path)


@pytest.mark.parametrize(
    ("name", "normalisation", "said"),
    [
        ("uncased", UNCASED, ""),
        ("cased", CASED, ""),
        ("cased", UNCASED, "can never come from text"),
        ("uncased", CASED, "capital letter"),
        ("chinese", UNCASED, ""),
    ],
)
def test_googles_vocabularies_know_their_case(
    name: str, normalisation: Normalisation, said: str
) -> None:
    found = check_case(google_vocab(name), normalisation)
    assert said in found and bool(said) == bool(found)


def test_a_language_without_case_has_no_capitals() -> None:
    assert check_case([*SPECIAL_TOKENS, "हिन्दी", "中", "##文"], CASED) == ""


@pytest.mark.parametrize(
    ("token", "said"),
    [
        ("covid", ""),
        ("##itis", ""),
        ("[unused7]", ""),
        ("§", ""),
        ("Covid", "read as 'covid'"),
        ("##É", "read as 'e'"),
        ("covid-19", "read as 'covid - 19'"),
        ("\u200b", "read as 'nothing'"),
        ("x" * 101, "longer than"),
    ],
)
def test_required_tokens_must_come_from_text(token: str, said: str) -> None:
    found = check_required(["ok", token], UNCASED, 100)
    assert said in found and bool(said) == bool(found)
