"""Plug-ins are found and read, never imported."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from pipeline.stage import UserError
from stages.catalog import CATALOG
from stages.config import Config
from stages.parallel import JobFailed
from stages.plugins import plugin_source
from tests.stages.in_process import run_shard

CODE = "raise SystemExit('imported')\n\ndef split(text):\n    return [text]\n"


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "mine_for_a_test"
    (folder / "inner").mkdir(parents=True)
    for name in ("__init__.py", "inner/__init__.py", "helper.py"):
        (folder / name).write_text("", encoding="utf-8")
    (folder / "inner" / "cut.py").write_text(CODE, encoding="utf-8")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    return folder


def source() -> str:
    return plugin_source("corpus.sentences", "mine_for_a_test.inner.cut:split")


def test_the_source_of_the_package_counts(package: Path) -> None:
    first = source()
    assert first == source()
    (package / "helper.py").write_text("x = 1\n", encoding="utf-8")
    changed = source()
    (package / "inner" / "cut.py").write_text(CODE + "# other\n", encoding="utf-8")
    assert len({first, changed, source()}) == 3


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("no_such_package_here:split", "no module 'no_such_package_here'"),
        ("mine_for_a_test.absent.cut:split", "no module 'mine_for_a_test.absent.cut'"),
        ("mine_for_a_test.inner.cut.split:split", "no module"),
        ("mine_for_a_test.inner.cut:splt", "there is no 'splt'"),
        ("mine_for_a_test.broken:split", "line 2, is not Python"),
        ("icu4py.breakers:SentenceBreaker", "no Python source"),
    ],
)
def test_what_is_not_there_names_the_key(package: Path, name: str, message: str) -> None:
    (package / "broken.py").write_text("\ndef :\n", encoding="utf-8")
    with pytest.raises(UserError, match=message) as error:
        plugin_source("corpus.sentences", name)
    assert str(error.value).startswith(f"corpus.sentences={name}: ")


def shard(**corpus: object) -> tuple[object, tuple[str, ...]]:
    config = Config.model_validate({"corpus": {"kind": "python_docs", **corpus}})
    node = next(n for n in CATALOG.nodes(config) if n.name == "shard")
    return node.config, node.stage.libraries


def test_what_each_method_puts_into_the_fingerprint(package: Path) -> None:
    plain, libraries = shard()
    assert "sentencex" not in libraries
    assert shard(language="de") == (plain, libraries), "only sentencex asks for it"
    own, libraries = shard(sentences="mine_for_a_test.inner.cut:split")
    (package / "helper.py").write_text("x = 1\n", encoding="utf-8")
    assert shard(sentences="mine_for_a_test.inner.cut:split")[0] != own
    english, libraries = shard(sentences="sentencex")
    assert "sentencex" in libraries
    assert shard(sentences="sentencex", language="de")[0] != english


@pytest.mark.parametrize("sentences", ["punkt", "a b:c", ":f", "m:", "m:f:g", "1m:f"])
def test_other_words_are_refused(sentences: str) -> None:
    with pytest.raises(ValueError, match="use icu, sentencex, lines, or"):
        Config.model_validate({"corpus": {"kind": "python_docs", "sentences": sentences}})


@pytest.mark.parametrize("language", ["english", "EN", "de-AT", ""])
def test_languages_are_codes(language: str) -> None:
    with pytest.raises(ValueError, match="language"):
        Config.model_validate({"corpus": {"kind": "python_docs", "language": language}})


def test_the_stage_splits_by_it_or_names_the_document(
    package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = (
        "def split(text):\n    return text.replace('; ', ';|').split('|')\n\n"
        "def lose(text):\n    return text[:5]\n"
    )
    (package / "inner" / "semicolons_for_a_test.py").write_text(code, encoding="utf-8")
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    for i in range(60):
        (corpus / f"{i:02d}.txt").write_text(f"The {i}th of them; and é; more of it" * 3, "utf-8")
    settings = {"kind": "files", "paths": [str(corpus)], "validation_share": 0.2}
    name = "mine_for_a_test.inner.semicolons_for_a_test"
    result, _ = run_shard(monkeypatch, tmp_path / "a", {**settings, "sentences": f"{name}:split"})
    assert result.figures["sentences"] == 60 * 7
    with pytest.raises(JobFailed, match=r"corpus\.sentences: .*:lose gave a string.*\d\d\.txt"):
        run_shard(monkeypatch, tmp_path / "b", {**settings, "sentences": f"{name}:lose"})
