"""Tables and numbers as a terminal shows them."""

from __future__ import annotations

import pytest

from pipeline.commands.text import flow, is_number, table


def test_the_last_column_is_broken_to_the_width() -> None:
    rows = [
        ("mask/128", "run", "", "mask.probability: 0.15 -> 0.2; mask.max_predictions: 20 -> 26")
    ]
    whole = list(table(("node", "state", "took", "why"), rows))
    assert whole[1].endswith("20 -> 26") and "took" not in whole[0]
    broken = list(table(("node", "state", "took", "why"), rows, 60))
    assert len(broken) == 3 and max(map(len, broken)) <= 60
    assert " ".join(" ".join(broken[1:]).split()) == " ".join(whole[1].split())
    assert list(table(("node",), [])) == []


def test_flow() -> None:
    assert flow({"counts": {"in": 5, "out": 4, "too_short": 1}, "unit": "documents"}) == (
        "5 -> 4 documents (1 too short)"
    )
    assert flow({"flow": "3 rows -> 1 model"}) == "3 rows -> 1 model"
    assert flow({"rows": 2000, "bytes": 3400}) == "-> 2,000 rows, 3.4 kB"


@pytest.mark.parametrize(
    "text", ["1,234", "12.5 %", "3.4 MB", "-0.12 nats", "1e-05", "42.3 to 57.1 %", ""]
)
def test_numbers(text: str) -> None:
    assert is_number(text)


@pytest.mark.parametrize("text", ["a.txt", "[MASK]", "1 of the documents", "yes"])
def test_words(text: str) -> None:
    assert not is_number(text)
