from __future__ import annotations

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st

from stages.text import icu
from tests.oracle.real_text import FILES, paragraphs

# Long stretches to be left out, and everything that decides about a boundary beside them.
LONG = st.sampled_from(
    [
        "and so it went on and on, for all that I know, until the end of it",
        "der Straße, über die größeren Brücken, hinweg, bis fünf Uhr früh",
        "nhưng cậu bé vẫn không thể nào ngủ được, vì trời đã sáng rồi",
        "долго ли, коротко ли, шёл он лесом, полем, и пришёл к морю",
        "12,345 67,890 (all of them) [and more] {yes} 'so' \"be it\" 1",
        "1234567890 1234567890 1234567890 1234567890 1234567890 1234567",
        "1 2 3 4 5 6 7 8 9 10 11 12 and 1 2 3 4 5 6 7 8 9 10 11 12 13 14",
    ]
)
# Terminators of many scripts, what goes on behind them (close, extend, format), and line ends.
MARKS = st.one_of(
    st.sampled_from(list(".!?\n)”» 。！؟।॥།።։។။․﹒．\u0301\u200d\u00ad\u0903\r\x85\u2028😀")),
    st.sampled_from(["e\u0301.", ". a", ". A", ".1", "...", "?! ", ". ", "  ", "A.B. "]),
)
SHORT = st.lists(st.one_of(MARKS, st.text(max_size=3)), min_size=1, max_size=3).map("".join)
TEXTS = st.lists(st.tuples(SHORT, LONG).map("".join), max_size=6).map("".join)


@settings(max_examples=500, deadline=None)
@given(TEXTS)
@example("a. Long, long ago, before all of it,\x85there was a time that nobody remembers")
def test_what_is_left_out_has_no_say(text: str) -> None:
    data = np.frombuffer(f"{text}\n".encode(), np.uint8)
    assert icu.icu_ends(data).tolist() == icu._breaks_of(data).tolist()


def test_much_is_left_out_of_prose() -> None:
    text = "It was late, and all that had been said before was forgotten by now. " * 50 + "\n"
    start, end = icu._left_out(np.frombuffer(text.encode(), np.uint8))
    assert (end - start).sum() > 0.4 * len(text)


def test_real_text_has_the_same_boundaries() -> None:
    for language in FILES:
        text = "\n".join(paragraphs(language, 200_000)) + "\n"
        data = np.frombuffer(text.encode(), np.uint8)
        assert icu.icu_ends(data).tolist() == icu._breaks_of(data).tolist(), language


def test_empty() -> None:
    assert icu.icu_ends(np.zeros(0, np.uint8)).tolist() == []
