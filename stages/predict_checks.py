"""What `clozeline predict` refuses before anything is read or loaded."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from pipeline.stage import UserError
from stages.predict_output import SUFFIXES
from stages.prediction_rows import KEYS, Do
from stages.prediction_uses import command

if TYPE_CHECKING:
    from stages.predict_command import Request

_DEVICE = re.compile(r"auto|cpu|mps|cuda(:[0-9]+)?")

COLUMNS: dict[Do, tuple[str, ...]] = KEYS | {"classify": KEYS["pair"]}
"""The columns that are read of a file, by what is asked; `classify` takes pairs too."""


def check_options(request: Request) -> None:
    """Refuse values that no option takes, and options that would change nothing.

    Raises:
        UserError: it says what the option is for.
    """
    if not 0 <= request.most_unusable <= 1:
        raise UserError("--max-unusable-share is a share: from 0 to 1")
    if not _DEVICE.fullmatch(request.device):
        raise UserError(f"unknown device {request.device!r}: auto, cpu, cuda, cuda:N or mps")
    if request.batch_tokens < 1 or (request.top is not None and request.top < 1):
        raise UserError("--batch-tokens and --top take whole numbers of 1 or more")
    do = request.do
    if request.top is not None and do not in ("fill_mask", "answer"):
        raise _idle("--top", "the tokens of fill-mask and the answers of answer", do)
    if request.normalise and do != "embed":
        raise _idle("--normalise", "the vectors of embed", do)
    if request.context_file is not None and do != "answer":
        raise _idle("--context-file", "the questions of answer", do)
    for key in request.columns or {}:
        option = f"--{key.replace('_', '-')}"
        if key not in COLUMNS[do]:
            readers = [command(use) for use, keys in COLUMNS.items() if key in keys]
            raise _idle(option, f"a column that {' and '.join(readers)} read", do)
        if request.input is None:
            raise UserError(
                f"{option} names a column of a file: give the file with --input, or leave {option} "
                "out"
            )
        if key == "context" and request.context_file is not None:
            raise UserError("--context and --context-file: give one of the two")


def _idle(option: str, purpose: str, do: Do) -> UserError:
    return UserError(f"{option} is for {purpose}; {command(do)} has no use for it: leave it out")


def check_output(request: Request, large: bool) -> None:
    """Refuse an output that cannot be written, or that would overwrite what is read.

    Args:
        request: what is asked.
        large: whether the input goes through Ray for its size.

    Raises:
        UserError: it says what is wrong with `--output`.
    """
    target = request.output
    if target is None:
        return
    if not target.parent.is_dir():
        raise UserError(f"--output {target}: there is no folder {target.parent}")
    for option, source in (("--input", request.input), ("--context-file", request.context_file)):
        # The same file by whatever name: links of both kinds are followed.
        if source is not None and source.exists() and target.exists() and target.samefile(source):
            raise UserError(
                f"--output {target} is the file of {option} and would overwrite it: name another"
            )
    if target.suffix in SUFFIXES:
        if target.is_dir():
            raise UserError(f"--output {target} is a folder")
        return
    if not (request.ray or large):
        raise UserError(
            f"--output {target}: its ending must be one of {', '.join(SUFFIXES)} "
            "(a folder for parts: with --ray)"
        )
    if target.exists():
        raise UserError(f"--output {target} is there already: name a folder that is not")
