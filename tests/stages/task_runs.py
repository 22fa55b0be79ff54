"""Stage task run by itself: no runner, no Ray."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from model.bert import BertForPreTraining, init_weights
from model.config import BertConfig
from model.huggingface import write_folder
from pipeline.results import check_counts, result_to_json
from pipeline.stage import Context, Granted, Node, Result
from pipeline.stop import StopSignal
from pipeline.store import Artifact, ArtifactWriter, Store
from pipeline.tracking import NoMetrics
from stages import task as stage
from stages.config import Config
from stages.task_nodes import task_node
from stages.text.special_tokens import SPECIAL_TOKENS
from stages.text.tokenizer_files import tokenizer_files
from stages.text.wordpiece import Tokenizer
from stages.text.words import Normalisation
from stages.vocabulary_files import SETTINGS
from tests.stages.in_process import Quiet

LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789.,?!()-'"
SMALL = (*SPECIAL_TOKENS, *LETTERS, *(f"##{letter}" for letter in LETTERS))
SHAPE = {"hidden_size": 16, "num_layers": 2, "num_heads": 2, "max_position_embeddings": 128}


class Notes(Quiet):
    """Progress that remembers what it was told."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def note(self, text: str) -> None:
        self.said.append(text)


def vocab_artifact(store: Path, tokens: Sequence[str] = SMALL, lowercase: bool = True) -> Artifact:
    """As the stage vocab writes it."""
    normalisation = Normalisation(lowercase, lowercase)
    writer = Store(str(store)).begin("vocab", "1" * 64, "attempt")
    for name, data in tokenizer_files(Tokenizer(tokens, normalisation), 512).items():
        writer.write_bytes(name, data)
    settings = dataclasses.asdict(normalisation) | {"max_word_characters": 100}
    writer.write_bytes(SETTINGS, json.dumps(settings).encode())
    return writer.commit({"figures": {}})


def model_folder(folder: Path, tokens: Sequence[str] = SMALL, entries: int | None = None) -> Path:
    """A BERT as transformers writes it, with a table of `entries` rows."""
    model = BertForPreTraining(BertConfig(vocab_size=entries or len(tokens), **SHAPE))
    init_weights(model, torch.Generator().manual_seed(1))
    write_folder(folder, model)
    (folder / "vocab.txt").write_text("".join(f"{token}\n" for token in tokens))
    return folder


def task_config(name: str, task: dict[str, Any], **groups: Any) -> Config:
    """A config with one task."""
    values = {"corpus": {"kind": "python_docs"}, "tasks": {name: task}, **groups}
    return Config.model_validate(values)


def node_of(config: Config) -> Node:
    """The node of its one task."""
    ((name, task),) = config.resolved_tasks().items()
    return task_node(config, name, task)


def run_task(
    store: Path, config: Config, vocab: Artifact | None = None, attempt: str = "attempt"
) -> tuple[Result, Artifact, list[str]]:
    """Run the stage and commit; also what it said on the way."""
    node, notes = node_of(config), Notes()
    output = begin(store, node, attempt)
    result = stage.run(context_of(node, output, vocab, notes))
    check_counts(node.name, result.counts)
    figures = dict(result.figures)
    return result, output.commit({"figures": figures}, report=result_to_json(result)), notes.said


def begin(store: Path, node: Node, attempt: str = "attempt") -> ArtifactWriter:
    """A writer for the node."""
    return Store(str(store)).begin(node.name, "0" * 64, attempt)


def context_of(
    node: Node, output: ArtifactWriter, vocab: Artifact | None, notes: Notes | None = None
) -> Context:
    """What the runner would give the stage."""
    assert node.raw is not None
    assert set(node.inputs) == ({"vocab"} if node.settings["init_from"] is None else set())
    return Context(
        node=node,
        inputs={} if vocab is None else {"vocab": vocab},
        output=output,
        fingerprint="0" * 64,
        attempt="attempt",
        granted=Granted(1, 0),
        progress=notes or Notes(),
        metrics=NoMetrics(),
        stop=StopSignal(),
        raw=node.raw(),
    )
