"""Characters that cleaning removes, or replaces by a plain space or newline, in place.

A character of several bytes that becomes a space or newline leaves carriage returns in its other
bytes: white space to be deleted (`cleaning`).
"""

from __future__ import annotations

from collections import Counter

import numpy as np
import numpy.typing as npt

from stages.text.buffers import Bytes, Offsets

DELETED, NEWLINE, CARRIAGE_RETURN, SPACE, DELETE = 0, 10, 13, 32, 127
_TAB, _VERTICAL_TAB, _FORM_FEED = 9, 11, 12


def _single_table() -> Bytes:
    table = np.zeros(256, np.uint8)
    table[[_VERTICAL_TAB, _FORM_FEED]] = NEWLINE
    table[_TAB] = SPACE
    table[CARRIAGE_RETURN] = CARRIAGE_RETURN
    return table


_SINGLE = _single_table()


def single_bytes(data: Bytes, offsets: Offsets, line_breaks: bool, counts: Counter[str]) -> bool:
    """ASCII controls: deleted, or made newlines and spaces. Returns whether any was deleted."""
    controls = data < SPACE
    controls &= data != NEWLINE
    controls |= data == DELETE
    at = np.flatnonzero(controls)
    if not len(at):
        return False
    codes = data[at]
    found = np.bincount(codes, minlength=128)
    becomes = _SINGLE[codes]
    if not line_breaks:
        becomes[(codes == _VERTICAL_TAB) | (codes == _FORM_FEED)] = SPACE
    # One before a newline of the same text is deleted, any other is a newline.
    returns = codes == CARRIAGE_RETURN
    following = data[np.minimum(at + 1, len(data) - 1)]
    alone = returns & (following != NEWLINE)
    if found[CARRIAGE_RETURN]:
        last = offsets[1:][offsets[1:] > 0] - 1
        last = last[data[last] == CARRIAGE_RETURN]
        alone[np.searchsorted(at, last)] = True
    becomes[alone] = NEWLINE
    data[at] = becomes
    breaks = int(found[_VERTICAL_TAB] + found[_FORM_FEED])
    counts["line_breaks"] += int(found[CARRIAGE_RETURN]) + (breaks if line_breaks else 0)
    counts["spaces"] += int(found[_TAB]) + (0 if line_breaks else breaks)
    removed = len(at) - int(found[CARRIAGE_RETURN] + found[_TAB]) - breaks
    counts["controls"] += removed
    return removed > 0


_NAMES = ("", "line_breaks", "controls", "spaces", "invisible")
_BREAK, _CONTROL, _SPACED, _INVISIBLE = 1, 2, 3, 4

# (all bytes but the last, range of the last, what happens to the character)
_RULES: tuple[tuple[bytes, tuple[int, int], int], ...] = (
    (b"\xc2", (0x80, 0x9F), _CONTROL),  # U+0080-009F, C1 controls
    (b"\xc2", (0x85, 0x85), _BREAK),  # U+0085 next line
    (b"\xc2", (0xA0, 0xA0), _SPACED),  # U+00A0 no-break space
    (b"\xc2", (0xAD, 0xAD), _INVISIBLE),  # U+00AD soft hyphen
    (b"\xe1\x9a", (0x80, 0x80), _SPACED),  # U+1680 ogham space
    (b"\xe2\x80", (0x80, 0x8A), _SPACED),  # U+2000-200A typographic spaces
    (b"\xe2\x80", (0x8B, 0x8B), _INVISIBLE),  # U+200B zero width space
    (b"\xe2\x80", (0x8E, 0x8F), _INVISIBLE),  # U+200E-200F direction marks
    (b"\xe2\x80", (0xA8, 0xA9), _BREAK),  # U+2028-2029 separators
    (b"\xe2\x80", (0xAA, 0xAE), _INVISIBLE),  # U+202A-202E direction overrides
    (b"\xe2\x80", (0xAF, 0xAF), _SPACED),  # U+202F narrow no-break space
    (b"\xe2\x81", (0x9F, 0x9F), _SPACED),  # U+205F mathematical space
    (b"\xe2\x81", (0xA0, 0xAF), _INVISIBLE),  # U+2060-206F joiners, isolates
    (b"\xe3\x80", (0x80, 0x80), _SPACED),  # U+3000 ideographic space
    (b"\xef\xbb", (0xBF, 0xBF), _INVISIBLE),  # U+FEFF byte order mark
)
# U+200C and U+200D stay: they change how Persian, Indic scripts and emoji are read.

_PREFIXES = tuple(dict.fromkeys(rule[0] for rule in _RULES))


def _actions() -> npt.NDArray[np.int8]:
    """[prefix, last byte]: what happens; the later rule wins."""
    table = np.zeros((len(_PREFIXES), 256), np.int8)
    for prefix, (low, high), action in _RULES:
        table[_PREFIXES.index(prefix), low : high + 1] = action
    return table


_ACTIONS = _actions()


def multi_bytes(data: Bytes, invisible: bool, line_breaks: bool, counts: Counter[str]) -> bool:
    """Apply `_RULES` in place. Returns whether a character was deleted.

    Args:
        data: valid UTF-8, so that a lead byte is followed by all of its continuation bytes.
        invisible: whether invisible characters are deleted; controls always are.
        line_breaks: whether separators become newlines, or else spaces.
        counts: added to, under `_NAMES`.
    """
    deleted = False
    highest = int(data.max())
    beyond = data >= 0xC2
    few = np.count_nonzero(beyond) < len(data) // 64
    leads = np.flatnonzero(beyond) if few else None
    for prefix, actions in zip(_PREFIXES, _ACTIONS, strict=True):
        if prefix[0] > highest:
            break
        at = _places(data, prefix, leads)
        if not len(at):
            continue
        action = actions[data[at + len(prefix)]]
        if not invisible:
            action[action == _INVISIBLE] = 0
        if not line_breaks:
            action[action == _BREAK] = _SPACED
        hit = np.flatnonzero(action)
        if not len(hit):
            continue
        at, action = at[hit], action[hit]
        for kind, number in enumerate(np.bincount(action, minlength=len(_NAMES)).tolist()):
            if number:
                counts[_NAMES[kind]] += number
        gone = (action == _CONTROL) | (action == _INVISIBLE)
        data[at] = np.where(gone, DELETED, np.where(action == _BREAK, NEWLINE, SPACE))
        for i in range(1, len(prefix) + 1):
            data[at + i] = np.where(gone, DELETED, CARRIAGE_RETURN)
        deleted |= bool(gone.any())
    return deleted


def _places(
    data: Bytes, prefix: bytes, leads: npt.NDArray[np.int64] | None
) -> npt.NDArray[np.int64]:
    """Where `prefix` stands; `leads`, where they are few: all first bytes of its kind."""
    if leads is not None:
        at: npt.NDArray[np.int64] = leads[data[leads] == prefix[0]]
        return at if len(prefix) == 1 else at[data[at + 1] == prefix[1]]
    found = data[: len(data) - len(prefix)] == prefix[0]
    for i in range(1, len(prefix)):
        found &= data[i : len(data) - len(prefix) + i] == prefix[i]
    return np.flatnonzero(found)
