"""`clozeline predict`: finds the model, and hands the rest to the code that knows of models."""

from __future__ import annotations

import argparse
import importlib
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.stage import UserError
from pipeline.writer import unfinished_node

if TYPE_CHECKING:
    from pipeline.config import RunConfig
    from pipeline.graph import Graph
    from pipeline.store import Artifact, Store

WHAT = {
    "fill-mask": "fill_mask",
    "classify": "classify",
    "pair": "pair",
    "tag": "tag",
    "answer": "answer",
    "embed": "embed",
}

COLUMNS = ("text", "text_b", "question", "context", "words")
"""Keys of rows, whose columns options name."""

MODEL_FILES = ("config.json", "model.json", "manifest.json")
"""One of these stands in a folder that MODEL may name; other folders may be called as a node is."""


def predict(
    options: argparse.Namespace,
    words: Sequence[str],
    config: Callable[[], RunConfig],
    graph_and_store: Callable[[], tuple[Graph, Store]],
) -> None:
    """Predict from the words of the command line, from standard input or from a file.

    Args:
        options: of the command.
        words: what to do, the model, and texts.
        config: composes the config of `--set`, where it is needed.
        graph_and_store: its graph and store, likewise.

    Raises:
        UserError: wrong usage, no such model, a model for something else.
        StageError: too many rows cannot be used, or the results cannot be written.
        KeyboardInterrupt: it was said on standard error.
    """
    if not words or words[0] not in WHAT:
        names = ", ".join(WHAT)
        said = f"not {words[0]!r}" if words else "a model and texts"
        raise UserError(
            f"predict takes one of {names}, {said}: clozeline predict classify MODEL TEXT...; see "
            "clozeline predict --help"
        )
    if len(words) < 2:
        raise UserError(
            f"predict {words[0]} takes a model: a folder, or a node of this config (export, "
            "finetune/NAME)"
        )
    try:
        with _interruptible():
            _predict(options, words, config, graph_and_store)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        raise


class _Interrupt(KeyboardInterrupt):
    pass


@contextmanager
def _interruptible() -> Iterator[None]:
    """SIGINT raises a `KeyboardInterrupt` of our own inside.

    Of the plain one that passes through `exec`, as while a library is imported, Python remembers
    that it was there, and kills itself by the signal at its end: the exit code is lost.
    """
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler or (
        threading.current_thread() is not threading.main_thread()
    ):
        yield
        return

    def interrupt(*_: object) -> None:
        raise _Interrupt

    before = signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _predict(
    options: argparse.Namespace,
    words: Sequence[str],
    config: Callable[[], RunConfig],
    graph_and_store: Callable[[], tuple[Graph, Store]],
) -> None:
    if options.set:
        config()  # complains of what is misspelt, also where the model needs no config
    command = importlib.import_module("stages.predict_command")
    with ExitStack() as stack:
        folder = _local_folder(words[1], graph_and_store, stack)
        columns = {name: getattr(options, name) for name in COLUMNS}
        request = command.Request(
            do=WHAT[words[0]],
            folder=folder,
            words=list(words[2:]),
            input=options.input,
            columns={name: column for name, column in columns.items() if column is not None},
            context_file=options.context_file,
            output=options.output,
            as_json=options.json,
            top=options.top,
            normalise=options.normalise,
            most_unusable=options.max_unusable_share,
            device=options.device,
            precision=options.precision,
            batch_tokens=options.batch_tokens,
            ray=options.ray,
        )
        command.run(request, lambda: config().cluster)


def _local_folder(
    model: str, graph_and_store: Callable[[], tuple[Graph, Store]], stack: ExitStack
) -> Path:
    """The folder of a model on this machine."""
    path = Path(model).expanduser()
    unfinished = unfinished_node(path)
    if unfinished is not None:
        raise UserError(f"{model}: {unfinished} is not finished there; clozeline run makes it")
    if any((path / name).is_file() for name in MODEL_FILES):
        return path
    artifact = _artifact(model, path, graph_and_store)
    if artifact.is_local:
        return artifact.local_path()
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="clozeline-model-")))
    return artifact.fetch(folder)


def _artifact(
    model: str, path: Path, graph_and_store: Callable[[], tuple[Graph, Store]]
) -> Artifact:
    from pipeline.commands.look import found_artifact
    from pipeline.plan import plan

    graph, store = graph_and_store()
    try:
        names = graph.match(model)
    except UserError as error:
        if path.is_dir():
            raise UserError(
                f"{model}: the folder holds no config.json and model.safetensors, and no "
                "model.json and weights.safetensors, so there is no model in it"
            ) from None
        stage, slash, task = model.partition("/")
        hint = ""
        if slash and stage == "finetune":
            hint = (
                f"--set task={task} adds the task to the config, with the other values that it was "
                "fine-tuned with; or name the model's folder. "
            )
        raise UserError(
            f"{model}: there is no such folder, and no such node of this config. {hint}{error}"
        ) from None
    if len(names) > 1:
        raise UserError(f"{model} is several nodes: name one of {', '.join(names)}")
    plans = {made.node: made for made in plan(graph, store)}
    return found_artifact(plans[names[0]], store)
