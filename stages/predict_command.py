"""`clozeline predict`: rows in, results out, in this process or through Ray.

`pipeline` loads this module by name.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from pipeline.commands.text import terminal_width
from pipeline.config import ClusterConfig
from pipeline.stage import StageError, UserError
from stages.predict_checks import check_options, check_output
from stages.predict_input import Item, argument_rows, file_rows, line_rows
from stages.predict_output import JsonLines, Row, Sink, open_sink, schema, temporary, writing
from stages.predict_table import Shown
from stages.predict_tally import Tally
from stages.prediction_rows import Do, Unusable
from stages.predictor import Predictor
from stages.text.tasks.tables import MAX_RECORD_BYTES
from stages.training.device import Precision

LARGE_BYTES = 64_000_000
"""A file above this goes through Ray."""


@dataclass(frozen=True)
class Request:
    """What the command line asks.

    Attributes:
        do: what.
        folder: of the model.
        words: texts behind it; none, or a single "-", for standard input.
        input: a file instead of words.
        columns: key of a row -> name of its column in the file.
        context_file: one context for all questions.
        output: a file, or a folder for parts; None: standard output.
        as_json: JSON lines also on a terminal.
        top: how many tokens or answers.
        normalise: vectors.
        most_unusable: share of rows that may be left out.
        device, precision, batch_tokens: as of `Predictor.load`.
        ray: whether it goes through Ray whatever its size.
    """

    do: Do
    folder: Path
    words: Sequence[str] = ()
    input: Path | None = None
    columns: Mapping[str, str] | None = None
    context_file: Path | None = None
    output: Path | None = None
    as_json: bool = False
    top: int | None = None
    normalise: bool = False
    most_unusable: float = 0.01
    device: str = "auto"
    precision: Precision = "float32"
    batch_tokens: int = 8192
    ray: bool = False


def run(request: Request, cluster: Callable[[], ClusterConfig]) -> None:
    """Predict, write or print the results, and say on standard error what was left out.

    Args:
        request: what is asked.
        cluster: gives the configuration of Ray, where it is needed.

    Raises:
        UserError: nothing was read or written.
        StageError: too many rows cannot be used, or the output cannot be written; there is no file
            then.
    """
    check_options(request)
    check_output(request, is_large(request.input))
    rows = read_rows(request)
    if request.ray or is_large(request.input):
        from stages.predict_ray import run_in_ray

        tally = run_in_ray(request, rows, cluster())
    else:
        tally = _run_here(request, rows)
    for line in tally.lines():
        print(line, file=sys.stderr)


def _run_here(request: Request, rows: Iterable[Item]) -> Tally:
    predictor = load(request, lambda text: print(text, file=sys.stderr))
    tally = Tally()
    target = request.output
    if target is None:
        sink = _printing(request)
        write_results(predictor, request, enumerate(rows), sink, tally)
        sink.close()
        _require(tally, request)
        return tally
    making = temporary(target)
    try:
        sink = open_sink(making, columns(predictor, request), target)
        try:
            write_results(predictor, request, enumerate(rows), sink, tally)
        finally:
            sink.close()
        _require(tally, request)
        with writing(target):
            making.replace(target)
    finally:
        making.unlink(missing_ok=True)
    return tally


def _require(tally: Tally, request: Request) -> None:
    try:
        tally.require(request.most_unusable)
    except StageError:
        for line in tally.lines():
            print(line, file=sys.stderr)
        raise


def load(request: Request, notice: Callable[[str], None]) -> Predictor:
    """The model.

    Args:
        request: what is asked.
        notice: told what a person should know of it.

    Raises:
        UserError: as of `Predictor.load`, or it cannot do what is asked.
    """
    predictor = Predictor.load(
        request.folder, request.device, request.precision, request.batch_tokens
    )
    for text in predictor.notices:
        notice(text)
    predictor.outputs((), request.do)  # complains
    return predictor


def columns(predictor: Predictor, request: Request) -> Any:
    """The Arrow schema of what is asked."""
    return schema(request.do, predictor.task.objective, request.top or 1)


def write_results(
    predictor: Predictor,
    request: Request,
    rows: Iterable[tuple[int, Item]],
    sink: Sink,
    tally: Tally,
) -> None:
    """Put the results of numbered rows into a sink, and count them."""
    numbers: deque[int] = deque()

    def read() -> Iterator[Item]:
        for number, row in rows:
            numbers.append(number)
            if isinstance(sink, Shown):
                sink.read(number, row)
            yield row

    found = predictor.outputs(read(), request.do, request.top, request.normalise)
    for output in found:
        number = numbers.popleft()
        tally.rows += 1
        if isinstance(output, Unusable):
            tally.skip(number, output)
        else:
            tally.see(output)
            sink.write(number, output)


def read_rows(request: Request) -> Iterable[Item]:
    """The rows that are asked about.

    Raises:
        UserError: as of `stages.predict_input`; words and a file at once.
    """
    context = None
    if request.context_file is not None:
        try:
            context = request.context_file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"--context-file {request.context_file}: {error}") from None
    if request.input is not None:
        if request.words:
            raise UserError(
                f"--input {request.input} and texts on the command line: give one of the two"
            )
        return file_rows(request.input, request.do, request.columns or {}, context)
    if request.words and list(request.words) != ["-"]:
        return argument_rows(request.do, request.words, context)
    return line_rows(request.do, _lines_of(sys.stdin), context)


def _lines_of(stream: IO[str]) -> Iterator[bytes | None]:
    """Lines at \\n alone, as bytes, where the stream has them."""
    raw = getattr(stream, "buffer", None)
    if raw is None:  # a stream of a test or a notebook
        for line in stream:
            yield line.removesuffix("\n").encode("utf-8", "surrogatepass")
        return
    while line := raw.readline(MAX_RECORD_BYTES):
        if not line.endswith(b"\n") and len(line) == MAX_RECORD_BYTES:
            while (rest := raw.readline(MAX_RECORD_BYTES)) and not rest.endswith(b"\n"):
                pass
            yield None
        else:
            yield line.removesuffix(b"\n")


def _printing(request: Request) -> Sink:
    width = terminal_width()
    if request.as_json or width is None:
        return JsonLines(sys.stdout)
    return Shown(request.do, width)


def is_large(path: Path | None) -> bool:
    """Whether a file goes through Ray whatever is asked."""
    return path is not None and path.is_file() and path.stat().st_size > LARGE_BYTES


__all__ = ["Request", "Row", "run"]
