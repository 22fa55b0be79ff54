"""Composition, origins and the messages of wrong configurations."""

import functools
import operator
from pathlib import Path

import pytest
import yaml

from pipeline.config import PACKAGED, compose
from pipeline.overrides import find_groups
from pipeline.stage import UserError
from stages.config import Config

OPTIONS = [
    (group, option)
    for group, options in find_groups([PACKAGED]).options.items()
    for option in options
]


def config(*overrides: str, conf_dir: Path | None = None) -> Config:
    found = compose(overrides, conf_dir, Config).config
    assert isinstance(found, Config)
    return found


def message(*overrides: str, conf_dir: Path | None = None) -> str:
    with pytest.raises(UserError) as caught:
        compose(overrides, conf_dir, Config)
    text = str(caught.value)
    assert len(text.splitlines()) <= 10
    assert "Traceback" not in text
    return text


def write(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, "utf-8")
    return path


def test_default_is_the_demo() -> None:
    demo = config()
    assert demo.corpus.kind == "python_docs"
    assert demo.corpus.shards == 8
    assert demo.vocab.size == 8192 and demo.vocab.lowercase
    assert demo.pairs.max_seq_length == 128
    assert demo.mask.strategy == "per_token" and demo.mask.probability == 0.15
    assert (demo.model.hidden_size, demo.model.num_layers, demo.model.num_heads) == (128, 2, 2)
    assert demo.objective.nsp
    assert demo.store == "runs/store"
    assert len(demo.evaluate.sentences) == 4
    assert all("[MASK]" in sentence for sentence in demo.evaluate.sentences)


def test_a_list_may_go_over_several_lines() -> None:
    text = """corpus.sources=[
      {name: books, paths: [/data/books]},
      {name: web, paths: ["/data/a
b"], sample: 0.5}
    ]"""
    sources = config("corpus=mixed", text).corpus.sources  # type: ignore[union-attr]
    assert [source.name for source in sources] == ["books", "web"]
    # What is in quotes is as it was given.
    assert list(sources[1].paths) == ["/data/a\nb"]


def books(group: str, option: str) -> list[str]:
    """What a group of files needs beside itself."""
    files = group == "corpus" and option != "python_docs"
    return ["corpus.paths=[/data/books]"] if files else []


@pytest.mark.parametrize(("group", "option"), OPTIONS)
def test_every_packaged_option_is_valid(group: str, option: str) -> None:
    found = config(f"{group}={option}", *books(group, option))
    if group == "model":
        assert found.model.hidden_size % found.model.num_heads == 0


@pytest.mark.parametrize(("group", "option"), [pair for pair in OPTIONS if pair[0] != "experiment"])
def test_every_packaged_value_arrives(group: str, option: str) -> None:
    """A key that composing dropped or put elsewhere would not be where the file says it is."""
    text = (PACKAGED / group / f"{option}.yaml").read_text("utf-8")
    wanted = yaml.safe_load(text)
    # A group may stand inside of another: `# @package corpus.quality`.
    package = text.partition("@package ")[2].partition("\n")[0] or group
    found = compose([f"{group}={option}", *books(group, option)], None, Config)
    tree = functools.reduce(
        operator.getitem, package.split("."), found.config.model_dump(mode="json")
    )
    for key, value in wanted.items():
        if (group, key) != ("corpus", "paths"):
            # PyYAML reads 1e-4 as text; Hydra's loader does not.
            assert tree[key] == (float(value) if isinstance(tree[key], float) else value)
            assert found.origins[f"{package}.{key}"] == f"conf/{group}/{option}.yaml"


def test_whole_word_masks() -> None:
    assert config("mask=whole_word").mask.strategy == "whole_word"


@pytest.mark.parametrize("override", ["experiment=smoke", "+experiment=smoke"])
def test_experiment_wins_over_groups_and_the_command_line_over_it(override: str) -> None:
    assert config(override).train.steps == 40
    assert config(override, "train.steps=7").train.steps == 7
    assert config("train.steps=7", override).train.steps == 7


def test_experiment_picks_options_of_other_groups() -> None:
    base = config("experiment=bert_base")
    assert base.model.hidden_size == 768
    assert base.vocab.size == 30522
    assert [phase.max_seq_length for phase in base.phases] == [128, 512]
    assert config("experiment=bert_base", "model=mini").model.hidden_size == 256


@pytest.mark.parametrize("sign", ["", "+", "++"])
def test_keys_that_no_file_lists_can_be_set(sign: str) -> None:
    assert config(f"{sign}corpus.min_characters=5").corpus.min_characters == 5


def test_delete_goes_back_to_the_default_of_the_model() -> None:
    found = compose(["~vocab.size"], None, Config)
    assert isinstance(found.config, Config)
    assert found.config.vocab.size == 30522
    assert found.origins["vocab.size"] == "default"


def test_lists_and_phases_on_the_command_line() -> None:
    found = config(
        "corpus=text",
        "corpus.paths=[/data/a.txt,/data/b c/*.gz]",
        "phases=[{max_seq_length: 128}, {max_seq_length: 512, steps: 9}]",
    )
    assert found.corpus.paths == ("/data/a.txt", "/data/b c/*.gz")
    assert [phase.steps for phase in found.phases] == [None, 9]


def test_sources_inherit_what_they_leave_out() -> None:
    found = config(
        "corpus=jsonl",
        "corpus.text_field=body",
        "corpus.sources=[{name:wiki,paths:[/data/wiki],sample:0.1},{paths:[/b.csv],format:csv}]",
        "corpus.repeat=3",
    )
    wiki, second = found.corpus.resolved_sources()
    assert (wiki.name, wiki.format, wiki.sample, wiki.repeat) == ("wiki", "jsonl", 0.1, 3)
    assert (second.name, second.format, second.sample, second.text_field) == ("2", "csv", 1, "body")


def test_origins() -> None:
    origins = compose(
        ["mask=whole_word", "experiment=smoke", "vocab.size=4000"], None, Config
    ).origins
    assert origins["mask.probability"] == "conf/mask/whole_word.yaml"
    assert origins["train.steps"] == "conf/experiment/smoke.yaml"
    assert origins["train.learning_rate"] == "conf/train/demo.yaml"
    assert origins["vocab.size"] == "command line"
    assert origins["vocab.max_word_characters"] == "default"
    assert origins["seed"] == "conf/config.yaml"


def test_origins_name_every_leaf() -> None:
    found = compose([], None, Config)
    assert "cluster.object_store_mb" in found.origins
    assert set(found.origins) >= {"seed", "store", "phases", "corpus.distributions"}


def test_own_groups_lie_over_ours(tmp_path: Path) -> None:
    own = tmp_path / "conf (mine)"
    write(own, "model/mine.yaml", "hidden_size: 64\nnum_heads: 4\n")
    write(own, "mask/per_token.yaml", "probability: 0.3\n")
    found = compose(["model=mine"], own, Config)
    assert isinstance(found.config, Config)
    assert found.config.model.hidden_size == 64
    assert found.config.mask.probability == 0.3
    assert found.config.vocab.size == 8192
    assert found.origins["mask.probability"] == str(own / "mask/per_token.yaml")
    assert found.origins["mask.copies"] == "default"
    assert found.origins["vocab.size"] == "conf/vocab/uncased_8k.yaml"


def test_own_config_yaml_wins(tmp_path: Path) -> None:
    write(
        tmp_path,
        "config.yaml",
        "defaults:\n  - model: mini\n  - mine: law\n  - _self_\nseed: 7\n"
        "corpus:\n  kind: python_docs\n",
    )
    write(tmp_path, "mine/law.yaml", "# @package _global_\nvocab:\n  size: 999\n")
    found = config(conf_dir=tmp_path)
    assert (found.seed, found.model.hidden_size, found.vocab.size) == (7, 256, 999)


def test_own_group_beside_the_defaults(tmp_path: Path) -> None:
    write(tmp_path, "mine/law.yaml", "# @package _global_\nvocab:\n  size: 999\n")
    for override in ("mine=law", "+mine=law"):
        assert config(override, conf_dir=tmp_path).vocab.size == 999


def test_nothing_is_left_behind_between_compositions(tmp_path: Path) -> None:
    write(tmp_path, "mask/per_token.yaml", "probability: 0.3\n")
    assert config(conf_dir=tmp_path).mask.probability == 0.3
    assert config().mask.probability == 0.15


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        # Misspelt: the nearest key, the keys there are.
        ("mask.probabilty=0.2", ["mask.probabilty", "mask.probability", "strategy"]),
        ("probability=0.2", ["mask.probability", "evaluate.probability"]),
        ("trian.steps=3", ["trian", "train"]),
        ("sede=3", ["sede", "seed"]),
        # Groups and options: the choices.
        ("nosuchgroup=1", ["nosuchgroup", "corpus", "vocab", "phases"]),
        ("modle=tiny", ["modle", "model"]),
        ("model=gigantic", ["gigantic", "tiny", "mini", "large"]),
        ("mask=whole_words", ["mask=whole_word", "per_token"]),
        ("mask=0.2", ["0.2", "per_token", "mask.KEY=value"]),
        ("experiment=[smoke,nosuch]", ["nosuch", "two_phases"]),
        # Types and ranges: key, value, where, what is allowed.
        (
            "mask.probability=abc",
            ["mask.probability=abc", "command line", "a number above 0 and below 1"],
        ),
        ("mask.probability=1.5", ["mask.probability=1.5", "a number above 0 and below 1"]),
        ("train.steps=1.5", ["train.steps=1.5", "a whole number of at least 1"]),
        ("train.learning_rate=-1", ["train.learning_rate=-1", "above 0"]),
        ("pairs.max_seq_length=2", ["pairs.max_seq_length=2", "at least 8"]),
        ("pairs.balance=sometimes", ["pairs.balance=sometimes", "exact, reference"]),
        ("objective.nsp=maybe", ["objective.nsp=maybe", "true or false"]),
        ("corpus.paths=books", ["corpus.paths=books", "a list of texts"]),
        ("corpus.shards=0", ["corpus.shards=0", "at least 1, or null"]),
        ("seed=", ["seed=''", "a whole number"]),
        ("train.steps=null", ["how long to train", "train.tokens", "train.hours"]),
        ("train.hours=24", ["train.steps=3000", "train.hours=24", "add train.steps=null"]),
        ("train.global_batch_tokens=4096", ["add train.global_batch_size=null"]),
        ("train.batch_size=null", ["train.global_batch_size"]),
        ("vocab.size=null", ["vocab.size=None", "a whole number"]),
        # Rules across keys: the mend.
        (
            "model.hidden_size=130 model.num_heads=4",
            ["model.num_heads=4", "model.hidden_size=130", "model.num_heads=5"],
        ),
        ("pairs.max_seq_length=1024", ["1024", "model.max_position_embeddings=512"]),
        ("phases=[{max_seq_length:1024}]", ["1024", "model.max_position_embeddings"]),
        ("phases=[{max_seq_length:128},{max_seq_length:128}]", ["phases", "128"]),
        ("phases=[{steps:3}]", ["phases.0.max_seq_length is missing", "whole number"]),
        ("mask.max_predictions=200", ["mask.max_predictions=200", "125"]),
        ("mask.max_predictions=5", ["mask.max_predictions=5", "0.15", "128", "20", "null"]),
        (
            "phases=[{max_seq_length:128},{max_seq_length:512}] mask.max_predictions=20",
            ["512", "77", "null"],
        ),
        ("pairs.across_documents=true", ["pairs.across_documents", "objective.nsp=false"]),
        (
            "rounding.sharding=full train.optimizer=muon",
            ["rounding.sharding=none", "train.optimizer=adamw or lamb"],
        ),
        ("rounding.sharding=full rounding.compile=true", ["rounding.compile=false"]),
        ("store=", ["store=''", "characters: 1"]),
        ("corpus.paths=[~/books]", ["needs quotes"]),
        ("mask.mask_share=0.95", ["mask.mask_share", "mask.random_share", "1.05"]),
        ("mask=spans", ["mask=span"]),
        ("pairs.partner=same_source", ["pairs.partner", "provenance", "Use any"]),
        (
            "objective=sentence_order objective.nsp=false",
            ["objective.pair=sentence_order", "objective.nsp=true"],
        ),
        ("objective=sentence_order pairs=reference", ["pairs.balance=exact"]),
        ("vocab.size=3", ["vocab.size=3", "[MASK]"]),
        ("corpus=text", ["corpus.paths", "empty"]),
        ("corpus.paths=[a]", ["corpus.paths", "python_docs", "corpus=text"]),
        ("corpus.sources=[{paths:[a]}]", ["corpus.sources", "python_docs", "corpus=text"]),
        ("corpus=text corpus.paths=[a] corpus.sources=[{paths:[b]}]", ["both given", "leave one"]),
        ("corpus.sample=0", ["corpus.sample=0", "above 0 and of at most 1"]),
        ("corpus.repeat=0", ["corpus.repeat=0", "at least 1"]),
        ("corpus=text corpus.format=jsnl", ["'jsnl'", "Perhaps you meant jsonl", "wikitext"]),
        (
            "corpus=text corpus.sources=[{paths:[a],repeat:0}]",
            ["corpus.sources.0.repeat=0", "at least 1"],
        ),
        (
            "corpus=text corpus.sources=[{paths:[a],smaple:0.1}]",
            ["corpus.sources.0.smaple", "corpus.sources.0.sample"],
        ),
        ("corpus=text corpus.sources=[{name:a}]", ["corpus.sources.0.paths is missing"]),
        (
            "corpus=text corpus.sources=[{name:a,paths:[b]},{name:a,paths:[c]}]",
            ["two sources are named 'a'"],
        ),
        # Not an override at all.
        ("foo", ["foo", "key=value", "--only foo"]),
        ("whole_word", ["mask=whole_word"]),
        ("model", ["model", "tiny"]),
        ("=3", ["=3", "key=value"]),
        ("+=3", ["+=3", "key=value"]),
        ("vocab.size=3,4", ["vocab.size=3,4", "vocab.size=[3,4]"]),
        ("store=a(b", ["""'store="a(b"'"""]),
        ("corpus.paths=[a,b", ["corpus.paths=[a,b", "brackets"]),
        ("hydra.run.dir=x", ["hydra.run.dir", "Hydra"]),
        ("store=${nosuch}", ["nosuch"]),
        ("~nosuch.key", ["nosuch.key"]),
    ],
)
def test_wrong_configs_say_what_and_how(overrides: str, words: list[str]) -> None:
    text = message(*overrides.split())
    for word in words:
        assert word in text


def test_several_mistakes_in_one_message() -> None:
    text = message("mask.probability=2", "train.steps=0", "nosuch.key=1", "vocab.szie=3", "x=1")
    assert "mask.probability=2" in text and "train.steps=0" in text
    assert "... and 2 more" in text


def test_value_of_a_file_is_named_with_the_file(tmp_path: Path) -> None:
    path = write(tmp_path, "mask/mine.yaml", "probability: 7\n")
    assert str(path) in message("mask=mine", conf_dir=tmp_path)


def test_misspelt_key_in_a_file_is_named_with_the_file(tmp_path: Path) -> None:
    path = write(tmp_path, "mask/mine.yaml", "probabilty: 0.1\n")
    text = message("mask=mine", conf_dir=tmp_path)
    assert str(path) in text and "mask.probability" in text


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("a: 1\nprobability: [0.1\nb: 2\n", 3),
        ("probability: 0.1\n\tcopies: 2\n", 2),
        ("probability: 0.1\nprobability: 0.2\n", 2),
    ],
)
def test_bad_yaml_names_file_and_line(tmp_path: Path, text: str, line: int) -> None:
    path = write(tmp_path, "mask/mine.yaml", text)
    said = message("mask=mine", conf_dir=tmp_path)
    assert str(path) in said and f"line {line}" in said


def test_file_without_keys(tmp_path: Path) -> None:
    write(tmp_path, "mask/mine.yaml", "- 0.1\n- 0.2\n")
    assert "mask/mine.yaml" in message("mask=mine", conf_dir=tmp_path)


def test_empty_file_is_the_defaults(tmp_path: Path) -> None:
    write(tmp_path, "mask/mine.yaml", "")
    assert config("mask=mine", conf_dir=tmp_path).mask.probability == 0.15


def test_file_that_picks_a_missing_option(tmp_path: Path) -> None:
    write(
        tmp_path,
        "experiment/mine.yaml",
        "# @package _global_\ndefaults:\n  - override /model: huge\n",
    )
    assert "model/huge" in message("experiment=mine", conf_dir=tmp_path)


def test_conf_dir_that_is_not_there(tmp_path: Path) -> None:
    assert "nowhere" in message(conf_dir=tmp_path / "nowhere")
