"""`clozeline predict` in this process: words, lines and files in; JSON, Parquet, tables out."""

from __future__ import annotations

import io
import json
import re
import resource
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.arguments import parse
from pipeline.cli import main
from pipeline.commands.predict import WHAT
from stages import predict_ray
from stages.predict_command import Request, write_results
from stages.predict_output import merge, open_sink, schema
from stages.predict_tally import Tally
from stages.predictor import Predictor
from tests.conftest import ROOT, SMALL, Line, environment_of
from tests.ray_by_hand import RayByHand
from tests.stages.prediction_folders import TAGS, write_pretrained, write_task

CONTEXT = "Anna moved to Paris, and Bert lives in London."


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    at = tmp_path_factory.mktemp("models")
    made = {
        "classify": write_task(at / "classify", "sequence", ("no", "yes")),
        "value": write_task(at / "value", "sequence", ("score",)),
        "tag": write_task(at / "tag", "token", TAGS),
        "answer": write_task(at / "answer", "span"),
        "fill": write_pretrained(at / "fill"),
    }
    return {name: str(folder) for name, folder in made.items()}


class Said:
    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys
        self.err = ""

    def __call__(self, *words: str, code: int = 0) -> list[dict[str, Any]]:
        got = main(["predict", *words])
        out, self.err = self._capsys.readouterr()
        assert got == code, f"{out}\n{self.err}"
        return [json.loads(line) for line in out.splitlines()]


@pytest.fixture
def predict(capsys: pytest.CaptureFixture[str]) -> Said:
    return Said(capsys)


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def lines(monkeypatch: pytest.MonkeyPatch, content: bytes) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(content)))


def test_words_give_a_row_each(predict: Said, folders: dict[str, str]) -> None:
    ours = Predictor.load(Path(folders["classify"]))
    found = predict("classify", folders["classify"], "good=bad", "warm", "--", "-5 degrees")
    wanted = ours.classify(["good=bad", "warm", "-5 degrees"])
    assert found == [{"row": i, **row} for i, row in enumerate(wanted)]
    assert predict("pair", folders["classify"], "a", "b")[0]["score"] > 0
    (answer,) = predict("answer", folders["answer"], "who", CONTEXT, "--top", "3")
    assert len(answer["answers"]) == 3
    (tagged,) = predict("tag", folders["tag"], CONTEXT)
    assert tagged == {"row": 0, **Predictor.load(Path(folders["tag"])).tag([CONTEXT])[0]}
    (masked,) = predict("fill-mask", folders["fill"], "a [MASK] b", "--top", "2")
    assert len(masked["masks"][0]["tokens"]) == 2
    (vector,) = predict("embed", folders["fill"], "a b", "--normalise")
    assert sum(v * v for v in vector["vector"]) == pytest.approx(1.0)
    assert "value" in predict("classify", folders["value"], "a")[0]


def test_lines_of_standard_input(
    predict: Said, folders: dict[str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    lines(monkeypatch, "good\r\nübel\u2028film".encode())
    texts = ["good", "übel\u2028film"]
    wanted = Predictor.load(Path(folders["classify"])).classify(texts)
    assert predict("classify", folders["classify"]) == [
        {"row": i, **row} for i, row in enumerate(wanted)
    ]
    lines(monkeypatch, b"who\tAnna lives\nno tab\nwhere\tin\tParis\n\xff\tb\n")
    found = predict("answer", folders["answer"], "-", "--max-unusable-share", "0.5")
    answers = Predictor.load(Path(folders["answer"])).answer
    (wanted,) = answers([("where", "in\tParis")])
    assert [row["row"] for row in found] == [0, 2] and found[1] == {"row": 2, **wanted}
    assert "2 of 4 rows skipped" in predict.err
    assert "no_tab (1): row 1: " in predict.err and "undecodable (1): row 3: " in predict.err
    lines(monkeypatch, b"a\n\n")
    assert len(predict("classify", folders["classify"], code=1)) == 1
    assert "1 of 2 rows could not be used (50.0%; --max-unusable-share" in predict.err
    (tmp_path / "context.txt").write_text(CONTEXT, "utf-8")
    lines(monkeypatch, b"who\nwhere\n")
    context = ("--context-file", str(tmp_path / "context.txt"))
    wanted = answers([("who", CONTEXT), ("where", CONTEXT)])
    found = predict("answer", folders["answer"], *context)
    assert found == [{"row": i, **row} for i, row in enumerate(wanted)]


ROWS = [
    {"body": "Anna lives", "other": "in Paris", "tokens": ["Anna", "lives"]},
    {"body": "", "other": "", "tokens": []},
    {"body": 'a "good", film', "other": "bad", "tokens": ["x"]},
]


def write_rows(path: Path) -> Path:
    if path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in ROWS), "utf-8")
    elif path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(ROWS), path)
    elif path.suffix == ".txt":
        path.write_text("".join(f"{row['body']}\n" for row in ROWS), "utf-8")
    else:
        mark = "," if path.suffix == ".csv" else "\t"
        quoted = [[row[key].replace('"', '""') for key in ("body", "other")] for row in ROWS]
        table = [f'"{body}"{mark}"{other}"' for body, other in quoted]
        path.write_text("\n".join([f"body{mark}other", *table]) + "\n", "utf-8")
    return path


@pytest.mark.parametrize("suffix", ["jsonl", "parquet", "csv", "tsv", "txt"])
def test_files_of_every_kind_give_the_same(
    predict: Said, folders: dict[str, str], tmp_path: Path, suffix: str
) -> None:
    file = str(write_rows(tmp_path / f"rows.{suffix}"))
    share = ("--max-unusable-share", "0.4")
    found = predict("classify", folders["classify"], "--input", file, "--text", "body", *share)
    ours = Predictor.load(Path(folders["classify"]))
    wanted = ours.classify([ROWS[0]["body"], ROWS[2]["body"]])
    assert found == [{"row": 0, **wanted[0]}, {"row": 2, **wanted[1]}]
    assert "empty_text (1): row 1" in predict.err
    if suffix == "txt":
        return
    both = ("--text", "body", "--text-b", "other")
    found = predict("pair", folders["classify"], "--input", file, *both, *share)
    assert found == predict("classify", folders["classify"], "--input", file, *both, *share)
    assert [row["row"] for row in found] == [0, 2]
    assert found[0] == {"row": 0, **ours.pair([("Anna lives", "in Paris")])[0]}
    if suffix in ("jsonl", "parquet"):
        found = predict("tag", folders["tag"], "--input", file, "--words", "tokens", *share)
        assert [w["word"] for w in found[0]["words"]] == ["Anna", "lives"]
    predict("classify", folders["classify"], "--input", file, "--text", "bodi", *share, code=2)
    assert "has no column 'bodi': did you mean 'body'?" in predict.err


@pytest.mark.parametrize("do", ["classify", "value", "tag", "answer", "fill", "embed"])
def test_output_files_hold_what_is_printed(
    predict: Said, folders: dict[str, str], tmp_path: Path, do: str
) -> None:
    model = folders["fill" if do == "embed" else do]
    command = {"value": "classify", "fill": "fill-mask"}.get(do, do)
    rows = [
        {"text": f"[MASK] Anna lives {i}", "question": "who", "context": CONTEXT[i:]}
        for i in range(5)
    ]
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    words = (command, model, "--input", str(file), *(("--top", "2") if do == "answer" else ()))
    printed = predict(*words)
    assert predict(*words, "--output", str(tmp_path / "out.jsonl")) == []
    written = [
        json.loads(line) for line in (tmp_path / "out.jsonl").read_text("utf-8").splitlines()
    ]
    assert written == printed
    predict(*words, "--output", str(tmp_path / "out.parquet"))
    table = pq.read_table(tmp_path / "out.parquet").to_pylist()
    for row in table:
        if "scores" in row:
            row["scores"] = dict(row["scores"])
        if "vector" in row:
            row["vector"] = pytest.approx(row["vector"], abs=1e-6)
    assert printed == table
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out.jsonl", "out.parquet", "rows.jsonl"]


def test_nothing_is_written_when_too_much_is_skipped(
    predict: Said, folders: dict[str, str], tmp_path: Path
) -> None:
    file = str(write_rows(tmp_path / "rows.jsonl"))
    out = tmp_path / "out.jsonl"
    words = ("classify", folders["classify"], "--input", file, "--text", "body")
    predict(*words, "--output", str(out), code=1)
    assert "empty_text (1)" in predict.err and "1 of 3 rows could not be used" in predict.err
    assert [p.name for p in tmp_path.iterdir()] == ["rows.jsonl"]


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_a_full_disk_names_the_output(
    predict: Said, folders: dict[str, str], tmp_path: Path, suffix: str
) -> None:
    """A limit of the size of files fails as a full disk does, in the middle of writing."""
    file = tmp_path / "rows.txt"
    file.write_text("".join(f"Anna lives {i}\n" for i in range(100)))
    out = tmp_path / f"out.{suffix}"
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        words = ("--input", str(file), "--output", str(out))
        predict("classify", folders["classify"], *words, code=1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert predict.err.splitlines()[-1].startswith(f"clozeline: --output {out} cannot be written: ")
    assert "too large" in predict.err and "Traceback" not in predict.err
    assert [path.name for path in tmp_path.iterdir()] == ["rows.txt"]


@pytest.mark.slow
def test_an_interrupt_is_said_and_leaves_nothing(folders: dict[str, str], tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pipeline", "predict", "classify", folders["classify"]]
    predicting = subprocess.Popen(
        [*command, "--output", str(tmp_path / "out.jsonl"), "--device", "cpu"],
        cwd=ROOT, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    deadline = time.monotonic() + 120
    while not any(tmp_path.iterdir()) and predicting.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    predicting.send_signal(signal.SIGINT)
    said = predicting.communicate(timeout=60)[1]
    assert (predicting.returncode, said) == (3, "interrupted\n")
    assert not any(tmp_path.iterdir())


def test_an_interrupt_inside_exec_keeps_the_exit_code(folders: dict[str, str]) -> None:
    """As while a library is imported, which makes its classes so."""
    script = (
        "import sys\n"
        "from pipeline import cli\n"
        "kill = 'import os, signal; os.kill(os.getpid(), signal.SIGINT)'\n"
        "cli.composed = lambda *_: exec(kill)\n"
        "sys.exit(cli.main(['predict', 'classify', sys.argv[1], 'a', '--set', 'x=1']))\n"
    )
    command = [sys.executable, "-c", script, folders["classify"]]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (3, "interrupted\n")


def test_tables_on_a_terminal(
    folders: dict[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("stages.predict_command.terminal_width", lambda: 80)
    shown = {}
    for name, words in {
        "classify": ("classify", folders["classify"], "good film", " "),
        "value": ("classify", folders["value"], "good film"),
        "tag": ("tag", folders["tag"], CONTEXT, "a"),
        "answer": ("answer", folders["answer"], "who", CONTEXT),
        "fill": ("fill-mask", folders["fill"], "the [MASK] film"),
        "embed": ("embed", folders["fill"], "good film"),
    }.items():
        main(["predict", *words])
        shown[name] = capsys.readouterr().out.splitlines()
        assert max(map(len, shown[name])) <= 80, name
    assert shown["classify"][0].split() == ["label", "score", "text"]
    assert len(shown["classify"]) == 2 and shown["classify"][1].endswith("good film")
    assert shown["value"][0].split() == ["value", "text"]
    assert len(shown["fill"]) == 6
    assert shown["embed"][1].startswith("32")
    assert "Anna" in "".join(shown["tag"]) and "who" in shown["answer"][1]


def damaged(source: str, at: Path, what: str) -> str:
    folder = shutil.copytree(source, at / what)
    weights = folder / "model.safetensors"
    if what == "weights":
        weights.unlink()
    elif what == "pickle":
        weights.rename(folder / "pytorch_model.bin")
    elif what == "disguised":
        weights.write_bytes(b"\x80\x02}q\x00." * 10)
    elif what == "cut":
        weights.write_bytes(weights.read_bytes()[:-10])
    elif what == "vocabulary":
        for name in ("tokenizer.json", "vocab.txt"):
            (folder / name).unlink()
    elif what == "config":
        config = json.loads((folder / "config.json").read_text())
        config["clozeline"] = {"max_length": 65}
        (folder / "config.json").write_text(json.dumps(config))
    elif what == "entries":
        (folder / "tokenizer.json").unlink()
        with (folder / "vocab.txt").open("a") as file:
            file.write("one\n")
    return str(folder)


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("weights", "model.safetensors is not there"),
        ("weights", "model.safetensors or model.json and weights.safetensors"),
        ("pickle", "Pickled weights are not read"),
        ("disguised", "is a pickle under the name of safetensors"),
        ("disguised", "save_pretrained"),
        ("cut", "is damaged"),
        ("vocabulary", "holds neither tokenizer.json nor vocab.txt"),
        ("entries", "its vocabulary does not fit: vocab.txt has"),
        ("config", "clozeline.max_length=65 must be at least 4 and at most the 64 positions"),
    ],
)
def test_models_that_cannot_be_used(
    predict: Said, folders: dict[str, str], tmp_path: Path, what: str, message: str
) -> None:
    out = tmp_path / "out.jsonl"
    folder = damaged(folders["classify"], tmp_path, what)
    predict("classify", folder, "a", "--output", str(out), code=2)
    assert message in predict.err and "Traceback" not in predict.err
    assert [p.name for p in tmp_path.iterdir()] == [what]


def test_wrong_usage(predict: Said, folders: dict[str, str], tmp_path: Path) -> None:
    for words, message in (
        ((), "predict takes one of fill-mask, classify, pair"),
        (("guess", "x"), "not 'guess'"),
        (("classify",), "takes a model"),
        (("tag", folders["classify"], "a"), "classifies texts (2 classes), so it cannot tag"),
        (("fill-mask", folders["tag"], "a"), "clozeline predict tag or embed"),
        (("pair", folders["classify"], "a"), "takes two texts, not 1"),
        (("classify", str(tmp_path), "a"), "the folder holds no config.json"),
        (("classify", str(tmp_path / "no"), "a"), "no such folder, and no such node"),
        (("classify", folders["classify"], "--input", "no.csv"), "no.csv: there is no such file"),
        (("classify", folders["classify"], "a", "--input", "x"), "give one of the two"),
        (("classify", folders["classify"], "--input", str(tmp_path)), f"{tmp_path} is a folder"),
        (("classify", folders["classify"], "--input", __file__), ".csv, .tsv, .parquet, .arrow"),
        (("classify", "finetune/mood", "a"), "--set task=mood adds the task"),
        (("classify", "finetune/mood", "a"), "or name the model's folder"),
        (("embed", str(tmp_path), "a"), "no model.json and weights.safetensors"),
        (("classify", folders["classify"], "a", "--output", "x.txt"), "its ending must be one of"),
        (("classify", folders["classify"], "a", "--output", "no/x.jsonl"), "there is no folder no"),
        (("classify", folders["classify"], "a", "--device", "cuda:7"), "cuda:7"),
        (("classify", folders["classify"], "a", "--top", "0"), "whole numbers of 1 or more"),
        (("classify", folders["classify"], "a", "-x"), "-x: no such option"),
    ):
        predict(*words, code=2)
        assert message in predict.err and "Traceback" not in predict.err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("classify", "a", "--top", "3"), "--top is for the tokens of fill-mask"),
        (("embed", "a", "--top", "3"), "embed has no use for it"),
        (("classify", "a", "--normalise"), "--normalise is for the vectors of embed"),
        (("tag", "a", "--context-file", "x"), "--context-file is for the questions of answer"),
        (("classify", "--words", "x", "--input", "x.csv"), "--words is for a column that tag read"),
        (("tag", "--text-b", "x", "--input", "x.csv"), "a column that classify and pair read"),
        (("classify", "a", "--text", "body"), "--text names a column of a file: give the file"),
        (("classify", "--text", "body"), "give the file with --input"),
        (
            ("answer", "--input", "x.csv", "--context", "x", "--context-file", "x"),
            "--context and --context-file",
        ),
        (("classify", "a", "--set", "phasez=3"), "phasez"),
    ],
)
def test_options_that_would_do_nothing(
    predict: Said, folders: dict[str, str], words: tuple[str, ...], message: str
) -> None:
    do, *rest = words
    model = folders["fill" if do == "embed" else do]
    predict(do, model, *rest, code=2)
    assert message in predict.err and "Traceback" not in predict.err


def test_output_is_not_the_input(predict: Said, folders: dict[str, str], tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text('{"text": "a"}\n')
    (tmp_path / "soft.jsonl").symlink_to(file)
    (tmp_path / "hard.jsonl").hardlink_to(file)
    (tmp_path / "here").symlink_to(tmp_path)
    for name in ("rows.jsonl", "soft.jsonl", "hard.jsonl", "here/rows.jsonl"):
        for given, target in ((file, tmp_path / name), (tmp_path / name, file)):
            words = ("--input", str(given), "--output", str(target))
            predict("classify", folders["classify"], *words, code=2)
            assert "is the file of --input and would overwrite it" in predict.err
    assert file.read_text() == '{"text": "a"}\n'


def test_the_folder_of_an_artifact_is_its_model(
    predict: Said, folders: dict[str, str], tmp_path: Path
) -> None:
    shutil.copytree(folders["fill"], tmp_path / "data-1")
    (tmp_path / "manifest.json").write_text(json.dumps({"generation": "data-1"}))
    words = ("fill-mask", str(tmp_path), "a [MASK]")
    assert predict(*words) == predict("fill-mask", folders["fill"], "a [MASK]")
    store = ("--set", f"store={tmp_path / 'store'}")
    predict("fill-mask", "export", "a [MASK]", *store, code=2)
    assert "export has no result with this config" in predict.err


def test_an_unfinished_training_is_no_model(
    predict: Said, folders: dict[str, str], tmp_path: Path
) -> None:
    node = tmp_path / "store/finetune/x" / ("f" * 64)
    data = shutil.copytree(folders["classify"], node / "data")
    (node / "attempt.json").write_text(json.dumps({"attempt": "dead", "generation": "data"}))
    for folder in (data, node):
        predict("classify", str(folder), "a", code=2)
        assert "finetune/x is not finished there; clozeline run makes it" in predict.err
    predict("classify", str(shutil.copytree(data, tmp_path / "copy")), "a")
    (node / "manifest.json").write_text(json.dumps({"generation": "data"}))
    assert predict("classify", str(data), "a") == predict("classify", str(node), "a")


@pytest.mark.slow
def test_nodes_of_a_run_are_models(
    predict: Said, line: Line, corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The export, and the weights as training left them."""
    monkeypatch.chdir(line.folder)
    overrides = [*SMALL, f"corpus.paths=['{corpus}']"]
    named = [word for override in overrides for word in ("--set", override)]
    exported = predict("fill-mask", "export", "Call me [MASK].", *named)
    assert predict("fill-mask", "pretrain", "Call me [MASK].", *named) == exported
    predict("fill-mask", "vocab", "Call me [MASK].", *named, code=2)
    assert "config.json is not there" in predict.err


def test_parts_hold_all_rows_in_their_order(
    folders: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What Ray does, without it."""
    ours = Predictor.load(Path(folders["tag"]))
    texts = [f"Anna lives {i}" if i % 7 else "" for i in range(40)]
    monkeypatch.setattr(predict_ray, "PART_CHARACTERS", 300)
    parts = list(predict_ray.cut(({"text": text} for text in texts), tmp_path))
    assert len(parts) > 3
    for suffix in (".jsonl", ".parquet"):
        request = Request("tag", Path(folders["tag"]))
        worker = predict_ray.PartPredictor(request, suffix)
        tally = Tally()
        for record in worker({"part": list(map(str, parts))})["record"]:
            tally.add(json.loads(record)["tally"])
        assert tally.rows == 40 and tally.reasons == {"empty_text": 6}
        columns = schema("tag", "tagging", 1)
        results = [predict_ray.result_of(part, suffix) for part in parts]
        merge(results, tmp_path / f"all{suffix}", columns)
        alone = open_sink(tmp_path / f"alone{suffix}", columns)
        write_results(ours, request, enumerate({"text": t} for t in texts), alone, Tally())
        alone.close()
        if suffix == ".jsonl":
            assert (tmp_path / "all.jsonl").read_bytes() == (tmp_path / "alone.jsonl").read_bytes()
        else:
            both = [pq.read_table(tmp_path / f"{name}.parquet") for name in ("all", "alone")]
            assert both[0].equals(both[1])
    broken = predict_ray.PartPredictor(Request("classify", Path(folders["tag"])), ".jsonl")
    (record,) = broken({"part": [str(parts[0])]})["record"]
    assert "it is for clozeline predict tag" in json.loads(record)["failed"]


def test_commands_of_the_page_are_known() -> None:
    page = (ROOT / "docs/prediction.md").read_text("utf-8")
    found = re.findall(r"^clozeline (.+?)(?: < .*)?$", page, re.MULTILINE)
    assert len(found) > 10
    for line in found:
        options, words = parse(shlex.split(line))
        assert words[0] in WHAT and len(words) >= 2 and options.command == "predict"


IN_SMALL_PARTS = """
import sys
from pipeline.cli import main
from stages import predict_ray
predict_ray.PART_CHARACTERS = 400
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.slow
def test_through_ray(
    predict: Said, folders: dict[str, str], tmp_path: Path, shared_ray: RayByHand
) -> None:
    file = tmp_path / "rows.jsonl"
    rows = [{"text": f"Anna lives {i}" if i != 3 else ""} for i in range(60)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    words = ("classify", folders["classify"], "--input", str(file), "--max-unusable-share", "0.1")
    wanted = predict(*words)
    address = f"cluster.address={shared_ray.address}"
    target = tmp_path / "out.jsonl"
    one = ("--set", address, "--set", "cluster.num_cpus=1", "--ray", "--output", str(target))
    # In a process of its own: Ray reads its token once.
    done = subprocess.run(
        [sys.executable, "-c", IN_SMALL_PARTS, "predict", *words, *one],
        env=environment_of(shared_ray),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert read(target) == wanted
    assert "empty_text (1): row 3" in done.stderr
    parts = re.search(r"(\d+) of \1 parts", done.stderr)
    assert parts is not None and int(parts[1]) > 3, done.stderr
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out.jsonl", "rows.jsonl"]
