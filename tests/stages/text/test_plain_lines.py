from __future__ import annotations

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st

from stages.text.buffers import Positions
from stages.text.icu import _breaks_of, _terminators
from stages.text.plain_lines import may_end, plain_ends

CLASSES = list("aB1 .!?,-:;\"')]\n$/\x7féÉ”—йЙ")
TEXTS = st.one_of(
    st.text(st.sampled_from(CLASSES), max_size=60),
    st.text(st.characters(min_codepoint=0x20, max_codepoint=0x24F), max_size=60),
    st.text(st.characters(codec="utf-8"), max_size=20).map(lambda text: f"So. {text}. And"),
)


def decided(text: str) -> tuple[Positions, Positions]:
    """Ends in a text, with those at newlines; and places in the lines that are left to ICU."""
    data = np.frombuffer(text.encode(), np.uint8)
    ends, undecided = plain_ends(data, np.flatnonzero(_terminators(data)))
    newlines = np.flatnonzero(data == ord("\n")) + 1
    undecided = np.append(undecided, np.flatnonzero(may_end(data)))
    return np.sort(np.concatenate((ends, newlines))), undecided


@settings(max_examples=2000, deadline=None)
@given(TEXTS)
@example(". a")
@example(".A")
@example("It is 3.5. (So.) Why?! 'No.' He said. 12 men, 3 women. 4 Dogs. U.S.A. x.")
@example("été. É. Été.É. 'Où?' Ça. é.A Й.A. — “so”. (é) a. é")
@example("In 1990. 25, (a) and. . . more. - So. , so")
def test_the_boundaries_are_those_of_icu(text: str) -> None:
    text += "\n"
    ends, undecided = decided(text)
    data = np.frombuffer(text.encode(), np.uint8)
    asked = _breaks_of(data)
    # A place that is left to ICU says nothing of the others: compare line by line.
    newlines = np.flatnonzero(data == ord("\n"))
    open_lines = np.searchsorted(newlines, undecided)
    keep = ~np.isin(np.searchsorted(newlines, asked - 1), open_lines)
    own = ~np.isin(np.searchsorted(newlines, ends - 1), open_lines)
    assert ends[own].tolist() == asked[keep].tolist()


def test_prose_is_decided() -> None:
    text = 'It is 3 p.m. now. "Is it?" he asked (in 1990. 25 men came.) Well... so be it!\n'
    assert len(decided(text)[1]) == 0


def test_letters_and_dashes_far_from_full_stops_have_no_say() -> None:
    assert len(decided("Über — für ‘die’ naïveté: это так много раз было. Aber ja.\n")[1]) == 0
    assert len(decided("Viel «mehr» noch.\n")[1]) > 0


def test_semicolons_and_long_ways_are_left_to_icu() -> None:
    assert len(decided("etc. ; and\n")[1]) == 1
    assert len(decided("in. 1 2 3 4 5 6 7 8 9 10 a\n")[1]) == 1
