"""What the stage vocab tells of what it made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pipeline.stage import Histogram, Json, Result, Table
from stages.text.special_tokens import SPECIAL_TOKENS

SAMPLE_ENTRIES = 120
SHOWN_CHARACTERS = 200
LONGEST_BAR = 20

MADE = {
    "entries": "entries",
    "alphabet": "characters kept",
    "dropped_characters": "characters left out",
    "merges": "merges",
    "last_merge_count": "the last merge was seen so often",
    "words": "words of the training text",
    "distinct_words": "distinct words",
    "left_out_words": "distinct words too rare to be trained on",
    "dropped_words": "distinct words with a character left out (always [UNK])",
    "long_words": "distinct words that are too long (always [UNK])",
}
MASS = {
    "left_out_word_mass": ("words too rare to be trained on", "words"),
    "dropped_word_mass": ("words with a character left out", "words"),
    "long_word_mass": ("words that are too long", "words"),
    "dropped_character_mass": ("characters left out", "character_mass"),
}


def describe_entries(vocab: Sequence[str], dropped: Sequence[str]) -> dict[str, Json]:
    """What a report shows of the entries themselves; JSON."""
    lengths = [len(token.removeprefix("##")) for token in vocab]
    by_length = np.bincount(np.minimum(lengths, LONGEST_BAR))
    ordinary = [token for token in vocab if token not in SPECIAL_TOKENS]
    step = max(1, len(vocab) // SAMPLE_ENTRIES)
    return {
        "lengths": {"edges": list(range(len(by_length) + 1)), "counts": by_length.tolist()},
        "dropped": list(dropped[:SHOWN_CHARACTERS]),
        "sample": ordinary[::step],
        "sample_step": step,
    }


def vocab_result(figures: Mapping[str, Any], entries: Mapping[str, Any], existing: bool) -> Result:
    """The stage's result from its figures and `describe_entries`."""
    made = "an existing vocabulary of" if existing else "->"
    return Result(
        figures=figures,
        flow=f"{figures['words']:,} words, {figures['distinct_words']:,} distinct "
        f"{made} {figures['entries']:,} entries",
        report=[
            _made_table(figures),
            *_mass_tables(figures),
            _coverage_table(figures),
            Histogram(
                "Entries by length",
                entries["lengths"]["edges"],
                entries["lengths"]["counts"],
                "characters, without ##",
            ),
            Table("Characters left out", ["character"], [[c] for c in entries["dropped"]]),
        ],
        samples=[
            f"Every {entries['sample_step']:,}. entry"
            + ("" if existing else ", the most useful ones first")
            + ":\n"
            + "  ".join(entries["sample"])
        ],
    )


def _made_table(figures: Mapping[str, Any]) -> Table:
    rows = [[words, figures[name]] for name, words in MADE.items() if name in figures]
    return Table("The vocabulary", ["what", "number"], rows)


def _mass_tables(figures: Mapping[str, Any]) -> list[Table]:
    """How much of the training text is left out; none for an existing vocabulary."""
    rows = [
        [words, f"{figures[name]:,}", f"{100 * figures[name] / max(1, figures[whole]):.4f} %"]
        for name, (words, whole) in MASS.items()
        if name in figures
    ]
    columns = ["of the training text", "occurrences", "share"]
    return [Table("What training left out", columns, rows)] if rows else []


def _coverage_table(figures: Mapping[str, Any]) -> Table:
    sides = ("training", "validation")
    rows = [
        ["words", *(f"{figures[f'words/{side}']:,}" for side in sides)],
        ["pieces a word", *(f"{figures[f'fertility/{side}']:.3f}" for side in sides)],
        [
            "words that are one piece",
            *(f"{100 * figures[f'single_piece_share/{side}']:.2f} %" for side in sides),
        ],
        [
            "unknown words ([UNK])",
            *(f"{100 * figures[f'unknown_share/{side}']:.4f} %" for side in sides),
        ],
    ]
    return Table("How it spells the text", ["", *sides], rows)
