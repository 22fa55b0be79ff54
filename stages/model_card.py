"""README.md of a model's folder: a model card in Hugging Face's format, from manifests alone.

Nothing is measured or guessed here: what the manifests do not say, the card does not say either.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from pipeline.lineage import Step
from pipeline.stage import Json, flatten
from stages.model_card_use import PIPELINES, PRETRAINED, use

CARD_FILE = "README.md"
SHAPE = (
    "num_hidden_layers",
    "hidden_size",
    "num_attention_heads",
    "vocab_size",
    "max_position_embeddings",
)
"""Of config.json, what the card says."""
SHOWN_CLASSES = 50
SHOWN_FILES = 20
_WORDS = {
    "classification": "puts a text, or a pair of texts, into one of {n} classes",
    "regression": "gives a text, or a pair of texts, a number",
    "tagging": "tags the words of a text ({scheme}: {n} tags)",
    "answers": "finds the answer to a question in a text, as a span of it",
    PRETRAINED: "is a pretrained encoder: it fills in `[MASK]`, and fine-tuning begins with it",
}


@dataclass(frozen=True)
class CardFigure:
    """A figure on held-out rows.

    Attributes:
        value: of the model in the folder.
        low, high: its 95 % interval over rows, where there is one.
        seeds: the same figure of each run that differs in the seed alone, this one included.
        baseline: what needs no model gets (always the most frequent class).
    """

    value: float
    low: float | None = None
    high: float | None = None
    seeds: Sequence[float] = ()
    baseline: float | None = None


@dataclass(frozen=True)
class CardData:
    """One side of the data.

    Attributes:
        name: "train", "dev".
        files: names, without the folder.
        rows: that came in.
        used: of these.
        left_out: reason -> rows.
        classes: class -> rows, where rows have classes.
    """

    name: str
    files: Sequence[str] = ()
    rows: int | None = None
    used: int | None = None
    left_out: Mapping[str, int] = field(default_factory=dict)
    classes: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Card:
    """What a card says.

    Attributes:
        name: of the task ("sst2"); of a pretrained model what it is called.
        described: as under `clozeline` in config.json; {"objective": PRETRAINED} for an encoder.
        shape: hidden_size, num_hidden_layers, num_attention_heads, vocab_size... of config.json.
        parameters: how many numbers the weights are.
        labels: of its classes, in order.
        data: what it learned from and was measured on.
        figures: name ("accuracy") -> figure, all on held-out rows.
        chosen_by: the figure that chose the epoch on the same held-out rows; None: none did.
        training: the slice of the config that it was trained with.
        lineage: what it was made from, as of `pipeline.lineage.lineage_of_inputs`.
        onnx: whether model.onnx is in the folder.
        datasets: names on Hugging Face's hub, where the data is known to be from there.
        more_limits: sentences.
    """

    name: str
    described: Mapping[str, Json]
    shape: Mapping[str, Json]
    parameters: int
    labels: Sequence[str] = ()
    data: Sequence[CardData] = ()
    figures: Mapping[str, CardFigure] = field(default_factory=dict)
    chosen_by: str | None = None
    training: Mapping[str, Json] = field(default_factory=dict)
    lineage: Sequence[Step] = ()
    onnx: bool = False
    datasets: Sequence[str] = ()
    more_limits: Sequence[str] = ()

    @property
    def objective(self) -> str:
        """One of the four, or `PRETRAINED`."""
        return str(self.described["objective"])


def data_side(name: str, counts: Mapping[str, Json], files: Sequence[str] = ()) -> CardData:
    """A side of the data from its counts in task.json.

    `counts` holds "in" and "out", reasons with numbers of rows, and "classes" (class -> rows).
    """
    numbers = {key: v for key, v in counts.items() if isinstance(v, int)}
    left_out = {key: n for key, n in numbers.items() if key not in ("in", "out") and n}
    classes = counts.get("classes")
    return CardData(
        name,
        files,
        numbers.get("in"),
        numbers.get("out"),
        left_out,
        dict(classes) if isinstance(classes, Mapping) else {},
    )


def model_card(card: Card) -> str:
    """The text of README.md: YAML between two lines of `---`, then Markdown."""
    sections = [
        _head(card),
        "## Use\n\n" + use(card.described, card.onnx),
        _data(card),
        _figures(card),
        _training(card),
        _limits(card),
        _lineage(card.lineage),
    ]
    return _front_matter(card) + "\n" + "\n\n".join(s for s in sections if s) + "\n"


def _front_matter(card: Card) -> str:
    """Values are JSON, which is YAML too: nothing in a name can break it."""
    task = PIPELINES[card.objective]
    values: dict[str, Json] = {
        "library_name": "transformers",
        "pipeline_tag": task,
        "tags": ["bert", "clozeline", *([] if card.objective == PRETRAINED else [card.objective])],
    }
    if card.datasets:
        values["datasets"] = list(card.datasets)
    if card.figures:
        values["metrics"] = list(card.figures)
        result = {
            "task": {"type": task, "name": card.name},
            "dataset": {"type": card.name, "name": f"{card.name}, held-out rows", "split": "dev"},
            "metrics": [
                {"type": name, "name": name, "value": f.value} for name, f in card.figures.items()
            ],
        }
        values["model-index"] = [{"name": f"clozeline-{card.name}", "results": [result]}]
    lines = [f"{key}: {json.dumps(value, ensure_ascii=False)}" for key, value in values.items()]
    return "\n".join(["---", *lines, "---", ""])


def _head(card: Card) -> str:
    what = _WORDS[card.objective].format(
        n=len(card.labels), scheme=card.described.get("scheme") or "no scheme"
    )
    shape = ", ".join(f"{key} {_cell(value)}" for key, value in card.shape.items())
    lines = [f"# {_plain(card.name)}", "", f"This BERT {what}."]
    if shape:
        lines += ["", f"{card.parameters:,} parameters: {shape}."]
    return "\n".join(lines)


def _data(card: Card) -> str:
    if not card.data:
        return ""
    rows = [
        [
            side.name,
            _names(side.files),
            _cell(side.rows),
            _cell(side.used),
            ", ".join(f"{n:,} {r.replace('_', ' ')}" for r, n in side.left_out.items()) or "none",
        ]
        for side in card.data
    ]
    parts = ["## Data", _table(["rows for", "files", "rows", "used", "left out, and why"], rows)]
    names = dict.fromkeys(name for side in card.data for name in side.classes)
    if names:
        shown = list(names)[:SHOWN_CLASSES]
        rows = [[n, *(_cell(side.classes.get(n, 0)) for side in card.data)] for n in shown]
        parts.append(_table(["class", *(side.name for side in card.data)], rows))
        if len(names) > len(shown):
            parts.append(f"... and {len(names) - len(shown):,} more classes")
    return "\n\n".join(parts)


def _figures(card: Card) -> str:
    if not card.figures:
        return ""
    rows = []
    for name, figure in card.figures.items():
        seeds = ""
        if len(figure.seeds) > 1:
            mean, deviation = statistics.mean(figure.seeds), statistics.stdev(figure.seeds)
            seeds = f"{mean:.4g} ± {deviation:.2g} ({len(figure.seeds)} seeds)"
        interval = ""
        if figure.low is not None and figure.high is not None:
            interval = f"{figure.low:.4g} to {figure.high:.4g}"
        baseline = "" if figure.baseline is None else f"{figure.baseline:.4g}"
        rows.append([name, f"{figure.value:.4g}", interval, seeds, baseline])
    header = ["figure", "this model", "95 % interval over rows", "mean ± deviation", "baseline"]
    used = [i for i in range(len(header)) if i < 2 or any(row[i] for row in rows)]
    table = _table([header[i] for i in used], [[row[i] for i in used] for row in rows])
    note = "On held-out rows; the baseline always says the most frequent class."
    if not any(row[4] for row in rows):
        note = "On held-out rows."
    return f"## Figures\n\n{table}\n\n{note}"


def _training(card: Card) -> str:
    rows = [[key, _cell(value)] for key, value in flatten(card.training)]
    return "## Training\n\n" + _table(["setting", "value"], rows) if rows else ""


def _limits(card: Card) -> str:
    return "## Limits\n\n" + "\n".join(f"- {limit}" for limit in _limit_lines(card))


def _limit_lines(card: Card) -> Iterator[str]:
    if card.chosen_by is not None:
        yield (
            f"The held-out rows chose the epoch (best {card.chosen_by}): the figures are a little "
            "better than they would be on rows that nobody has looked at."
        )
    elif card.figures:
        yield "The figures are of one set of held-out rows."
    seeds = max((len(figure.seeds) for figure in card.figures.values()), default=0)
    if seeds > 1:
        yield f"The model is the best of {seeds} seeds; the mean is what another seed would give."
    length = card.described.get("max_length")
    if length and card.objective in ("classification", "regression"):
        yield f"What is longer than {length} tokens is cut."
    elif length:
        yield f"Longer texts than {length} tokens are read in windows that overlap."
    if card.objective == "answers":
        yield "An answer is always a piece of the given text; it may be wrong."
    yield "The language of the text is not recorded: use it on text like that it was made from."
    yield "What its training text holds of prejudice or error may come back in what it says."
    yield from card.more_limits


def _lineage(steps: Sequence[Step]) -> str:
    if not steps:
        return ""
    rows = []
    for step in steps:
        made_from = list(dict.fromkeys(step.inputs.values()))
        if step.raw is not None:
            entries, digest = step.raw["entries"], str(step.raw["digest"])
            made_from.append(f"{entries:,} raw entries, listing `{digest[:16]}`")
        digests = (f"`{step.fingerprint[:16]}`", f"`{step.output_digest[:16]}`")
        rows.append([step.node, *digests, ", ".join(made_from), step.flow])
    table = _table(["made from", "fingerprint", "output digest", "reads", "in → out"], rows)
    words = (
        "A fingerprint says what a step was made from (config, code version, inputs), an output "
        "digest what came out. `clozeline lineage` prints them in full."
    )
    return f"## Lineage\n\n{words}\n\n{table}"


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(_plain(cell) for cell in line) + " |" for line in lines)


def _names(files: Sequence[str]) -> str:
    shown = ", ".join(files[:SHOWN_FILES])
    return shown + (f" and {len(files) - SHOWN_FILES:,} more" if len(files) > SHOWN_FILES else "")


def _cell(value: Json) -> str:
    if value is None:
        return ""
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _plain(text: str) -> str:
    """Text of the data as text: no bar ends a cell, no tag opens, no line ends."""
    one_line = " ".join(text.split())
    return one_line.replace("|", "\\|").replace("<", "&lt;")
