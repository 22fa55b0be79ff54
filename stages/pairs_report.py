"""The figures of stage pairs, of each shard and of all, and its report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np

from pipeline.stage import Histogram, Result, StageError, Table
from stages.config import ObjectiveConfig, PairsConfig
from stages.tables import LABELS
from stages.text.full_sentences import SentencePlan
from stages.text.pairing import PairPlan
from stages.text.sizes import summed
from stages.text.wordpiece import Encoded

LENGTH_BIN = 16
LEAST_VALIDATION_TOKENS = 10_000
SHOWN_SAMPLES = 10


def shard_figures(plan: PairPlan | SentencePlan, encoded: Encoded) -> dict[str, Any]:
    """Figures of one shard and copy; JSON. Lengths are rows in bars of `LENGTH_BIN` tokens."""
    if isinstance(plan, PairPlan):
        a = plan.a[:, 1] - plan.a[:, 0]
        b = plan.b[:, 1] - plan.b[:, 0]
        lengths = a + b + 3
        pairs: dict[str, Any] = {
            "not_next": int((~plan.is_next).sum()),
            "tokens/is_next": int(lengths[plan.is_next].sum()),
            "tokens/not_next": int(lengths[~plan.is_next].sum()),
            "cut": int(plan.is_cut.sum()),
        }
    else:
        segments = plan.segments[:, 1] - plan.segments[:, 0] + 1
        lengths = np.add.reduceat(segments, plan.rows[:-1]) + 1 if len(plan) else np.zeros(0, int)
        pairs = {}
    return pairs | {
        "rows": len(plan),
        "tokens": int(lengths.sum()),
        "lengths": np.bincount((lengths - 1) // LENGTH_BIN).tolist(),
        "counts": {unit: dict(reasons) for unit, reasons in plan.counts.items()},
        "dropped_sentences": encoded.dropped_sentences,
    }


def pairs_result(
    parts: Mapping[str, Mapping[str, Any]],
    objective: ObjectiveConfig,
    config: PairsConfig,
    bytes_out: int,
) -> Result:
    """The stage's result from the figures of its parts, by name.

    Raises:
        StageError: too little text is held out.
    """
    figures: dict[str, Any] = {}
    counts: Counter[str] = Counter()
    fates = []
    for split in ("train", "validation"):
        mine = {name: f for name, f in parts.items() if name.startswith(f"{split}-")}
        reasons = _reasons(mine)
        figures |= _split_figures(split, mine, objective, config.max_seq_length)
        fates.append(_fate_table(split, reasons))
        for reason, n in reasons.get("tokens", {}).items():
            counts[{"used": "out"}.get(reason, reason)] += n
    if objective.nsp:
        figures["labels"] = list(LABELS[objective.pair].values())
    seconds = {
        step: sum(f.get(f"seconds/{step}", 0.0) for f in parts.values())
        for step in ("tokenise", "pair", "gather", "write")
    }
    figures |= {f"seconds/{step}": value for step, value in seconds.items()}
    engines = Counter(f.get("engine", "dictionary") for f in parts.values())
    figures |= {f"shards/{engine}": n for engine, n in sorted(engines.items())}
    figures["bytes/in"] = sum(f["bytes/in"] for f in parts.values())
    figures["bytes/out"] = bytes_out
    if sum(seconds.values()):
        figures["mb_per_second_core"] = figures["bytes/in"] / 1e6 / sum(seconds.values())
    held_out = figures.get("tokens/validation", 0)
    if held_out < LEAST_VALIDATION_TOKENS:
        raise StageError(
            f"only {held_out} tokens are held out, at least {LEAST_VALIDATION_TOKENS} are needed "
            f"for figures that mean something: {_advice(held_out)} or give more text"
        )
    return Result(
        figures=figures,
        counts=dict(counts),
        unit="tokens",
        report=[
            _rows_table(figures, objective),
            _lengths_histogram(parts),
            *fates,
            _steps_table(figures, seconds),
        ],
        samples=[sample for f in parts.values() for sample in f["samples"]][:SHOWN_SAMPLES],
    )


def _reasons(parts: Mapping[str, Mapping[str, Any]]) -> dict[str, Counter[str]]:
    """What became of each unit (documents, sentences, tokens), over all parts."""
    reasons: dict[str, Counter[str]] = {}
    for f in parts.values():
        for unit, values in f["counts"].items():
            reasons.setdefault(unit, Counter()).update(values)
    return reasons


def _advice(held_out: int) -> str:
    if not held_out:
        return "raise corpus.validation_share"
    # With room for the luck of the draw.
    times = 1.5 * LEAST_VALIDATION_TOKENS / held_out
    return f"raise corpus.validation_share to about {times:.1f} times what it is"


def _split_figures(
    split: str,
    parts: Mapping[str, Mapping[str, Any]],
    objective: ObjectiveConfig,
    max_seq_length: int,
) -> dict[str, Any]:
    total: Counter[str] = Counter()
    for f in parts.values():
        total.update({k: v for k, v in f.items() if isinstance(v, int)})
    figures: dict[str, Any] = {f"{name}/{split}": value for name, value in sorted(total.items())}
    rows, no = total["rows"], total["not_next"]
    if not rows:
        return figures
    figures[f"padding_avoided_share/{split}"] = 1 - total["tokens"] / (rows * max_seq_length)
    if objective.nsp:
        apart = {name: abs(f["rows"] - 2 * f["not_next"]) for name, f in parts.items()}
        worst = max(apart, key=apart.__getitem__)
        figures |= {
            f"not_next_share/{split}": no / rows,
            f"worst_shard_difference/{split}": apart[worst],
            f"worst_shard/{split}": worst,
            f"mean_tokens_is_next/{split}": total["tokens/is_next"] / max(1, rows - no),
            f"mean_tokens_not_next/{split}": total["tokens/not_next"] / max(1, no),
        }
    return figures


def _lengths_histogram(parts: Mapping[str, Mapping[str, Any]]) -> Histogram:
    counted = summed(*(f["lengths"] for f in parts.values()))
    # A row of 16 tokens belongs to the bar that ends with 16.
    edges = [LENGTH_BIN * i + 1.0 for i in range(len(counted) + 1)]
    return Histogram("Rows by length", edges, counted, "tokens")


def _steps_table(figures: Mapping[str, Any], seconds: Mapping[str, float]) -> Table:
    """Seconds of all workers together, and text a second of one of them."""
    megabytes = figures["bytes/in"] / 1e6
    steps = {**seconds, "together": sum(seconds.values())}
    rows = [
        [step, f"{spent:.2f}", f"{megabytes / spent:.1f}"] for step, spent in steps.items() if spent
    ]
    sizes = f"{megabytes:,.1f} MB of text in, {figures['bytes/out'] / 1e6:,.1f} MB stored"
    return Table(f"Time a step ({sizes})", ["step", "seconds", "MB/s a core"], rows)


def _rows_table(figures: Mapping[str, Any], objective: ObjectiveConfig) -> Table:
    sides = ("train", "validation")

    def row(words: str, name: str, form: str = "{:,}", scale: float = 1) -> list[str]:
        values = (figures.get(f"{name}/{side}", 0) for side in sides)
        return [words, *(form.format(value * scale if scale != 1 else value) for value in values)]

    rows = [
        row("rows", "rows"),
        row("tokens", "tokens"),
        row("padding that is never stored", "padding_avoided_share", "{:.2f} %", 100),
    ]
    if objective.nsp:
        yes, no = LABELS[objective.pair].values()
        rows += [
            row(no, "not_next"),
            row(f"share of {no}", "not_next_share", "{:.3f} %", 100),
            row(f"{yes} against {no}, worst shard", "worst_shard_difference", "{:,} apart"),
            row(f"tokens of a row that is {yes}", "mean_tokens_is_next", "{:.2f}"),
            row(f"tokens of a row that is {no}", "mean_tokens_not_next", "{:.2f}"),
            row("pairs cut out of sentences", "cut"),
        ]
    return Table("The pairs" if objective.nsp else "The rows", ["", "training", "validation"], rows)


def _fate_table(split: str, reasons: Mapping[str, Mapping[str, int]]) -> Table:
    """What became of documents, sentences and tokens; a column each."""
    names = [n for n in ("in", "used") if any(n in values for values in reasons.values())]
    others = {name for values in reasons.values() for name in values} - set(names)
    names += sorted(n for n in others if any(values.get(n) for values in reasons.values()))
    rows = [[n.replace("_", " "), *(v.get(n, 0) for v in reasons.values())] for n in names]
    side = {"train": "training", "validation": "validation"}[split]
    return Table(f"What became of the {side} text", ["", *reasons], rows)
