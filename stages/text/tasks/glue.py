"""The file layouts of GLUE (Wang et al., 2018): which columns of which task hold what.

The files are TSV without quoting: a quote is text, and a line is a row.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from stages.text.tasks.rows import TaskFileError, nearest
from stages.text.tasks.sequences import SequenceColumns
from stages.text.tasks.tables import TableOptions

_PLAIN = TableOptions(format="tsv", quotes="never")


def _layout(text_a: str, text_b: str = "", label: str = "label") -> SequenceColumns:
    return SequenceColumns(text_a, text_b, label, table=_PLAIN)


_COLA = dataclasses.replace(_PLAIN, header=("source", "label", "star", "sentence"))
# "-": those who judged did not agree.
_MNLI = dataclasses.replace(_layout("sentence1", "sentence2", "gold_label"), no_label=("", "-"))

LAYOUTS: Mapping[str, SequenceColumns] = {
    "cola": dataclasses.replace(_layout("sentence"), table=_COLA),
    "mnli": _MNLI,
    "mrpc": _layout("#1 String", "#2 String", "Quality"),
    "qnli": _layout("question", "sentence"),
    "qqp": _layout("question1", "question2", "is_duplicate"),
    "rte": _layout("sentence1", "sentence2"),
    "sst2": _layout("sentence"),
    "stsb": dataclasses.replace(_layout("sentence1", "sentence2", "score"), regression=True),
    "wnli": _layout("sentence1", "sentence2"),
}
"""Layouts of train and dev files."""


def glue_layout(name: str, labels: bool = True) -> SequenceColumns:
    """The columns of a GLUE task.

    Args:
        name: of the task; case, "-" and "_" do not matter.
        labels: False for test files, which have no labels.

    Raises:
        TaskFileError: there is no such task.
    """
    plain = name.lower().replace("-", "").replace("_", "")
    if plain not in LAYOUTS:
        near = nearest(plain, LAYOUTS)
        hint = f": did you mean {near!r}?" if near else "."
        raise TaskFileError(f"no GLUE layout {name!r}{hint} There are {', '.join(LAYOUTS)}")
    layout = LAYOUTS[plain]
    if labels:
        return layout
    table = layout.table
    if plain == "cola":
        # Its test file has a header, unlike the others of the task.
        table = dataclasses.replace(table, header=())
    return dataclasses.replace(layout, label="", table=table)
