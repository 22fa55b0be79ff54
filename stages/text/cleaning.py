"""Cleaning on whole columns: characters, NFC, hard-wrapped lines, white space.

All steps work on the byte buffer of a column with NumPy. A byte set to 0 is one to be deleted;
NULs of the input, which are to go anyway, are so from the start.

Cleaned text holds no control character but the newline, no white space but single spaces inside
lines and at most two newlines in a row, and no white space at either end.
"""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from stages.text.buffers import Bytes, Offsets, text_array, text_buffer
from stages.text.unwrapping import join_wrapped_lines

SPACE, NEWLINE, CARRIAGE_RETURN, DELETED = 32, 10, 13, 0

BLOCK_BYTES = 256_000
"""Text cleaned at a time: what the processor's caches hold is done twice as fast."""

COUNTED = (
    "controls",
    "spaces",
    "line_breaks",
    "invisible",
    "nfc_documents",
    "joined_lines",
    "white_space",
)


@dataclass(frozen=True)
class CleaningOptions:
    """What may be switched.

    Attributes:
        unwrap: join hard-wrapped lines (`unwrapping.join_wrapped_lines`). Off where a line break
            has a meaning, as in the sentence format.
        nfc: compose characters (Unicode NFC), so that the same word has one spelling.
    """

    unwrap: bool = True
    nfc: bool = True


@dataclass(frozen=True)
class Cleaned:
    """Cleaned texts, one a text given (empty ones stay, as ""), and how often each step acted.

    `counts` holds: line_breaks (CR, CRLF, NEL, LS, PS, VT, FF made newlines), controls and
    invisible (characters removed), spaces (tabs, no-break and other spaces made plain ones),
    nfc_documents (texts that NFC changed), joined_lines, white_space (bytes of it removed).
    """

    texts: pa.StringArray
    counts: dict[str, int]


def clean(texts: pa.Array, options: CleaningOptions | None = None) -> Cleaned:
    """Clean a column of strings. The result of a text does not depend on its neighbours.

    Raises:
        ValueError: a text is null, or the column is not of strings.
    """
    options = options or CleaningOptions()
    text_buffer(texts[:0])  # refuses other columns, empty ones too
    counts: Counter[str] = Counter(dict.fromkeys(COUNTED, 0))
    cleaned = [_clean_block(block, options, counts) for block in _blocks(texts)]
    return Cleaned(pa.concat_arrays(cleaned or [texts.cast(pa.string())]), dict(counts))


def _blocks(texts: pa.Array) -> Iterator[pa.Array]:
    """Slices of about `BLOCK_BYTES`, or of one text that is larger."""
    _, offsets = text_buffer(texts)
    start = 0
    while start < len(texts):
        end = int(np.searchsorted(offsets, offsets[start] + BLOCK_BYTES, side="right")) - 1
        end = max(end, start + 1)
        yield texts[start:end]
        start = end


def _clean_block(texts: pa.Array, options: CleaningOptions, counts: Counter[str]) -> pa.Array:
    source, offsets = text_buffer(texts)
    raw = source.tobytes()
    data = _single_bytes(raw, counts)
    if not raw.isascii():
        _multi_bytes(data, counts)
    data, offsets = _delete(data, offsets)
    if options.nfc and not raw.isascii():
        data, offsets = _compose(data, offsets, counts)
    if options.unwrap:
        counts["joined_lines"] += join_wrapped_lines(data, offsets)
        data, offsets = _delete(data, offsets)
    before = len(data)
    data, offsets = _white_space(data, offsets)
    counts["white_space"] += before - len(data)
    return text_array(data, offsets)


def long_enough(texts: pa.Array, min_characters: int) -> tuple[pa.BooleanArray, dict[str, int]]:
    """Which cleaned texts stay, and how many do not: "empty" and "too_short" (in characters)."""
    lengths = pc.utf8_length(texts)
    empty = pc.sum(pc.equal(lengths, 0)).as_py() or 0
    keep = pc.greater_equal(lengths, max(min_characters, 1))
    dropped = len(texts) - (pc.sum(keep).as_py() or 0)
    return keep, {"empty": empty, "too_short": dropped - empty}


def _table(newlines: bytes, spaces: bytes) -> bytes:
    table = bytearray(range(256))
    for code in [*range(32), 127]:
        table[code] = DELETED
    for code in newlines:
        table[code] = NEWLINE
    for code in spaces:
        table[code] = SPACE
    table[CARRIAGE_RETURN] = CARRIAGE_RETURN
    return bytes(table)


_SINGLE_BYTES = _table(newlines=b"\n\v\f", spaces=b"\t ")


_RARE = bytes(code for code in [*range(32), 127] if code != NEWLINE)
_NOT_RARE = bytes(code for code in range(256) if code not in _RARE)


def _single_bytes(raw: bytes, counts: Counter[str]) -> Bytes:
    """ASCII controls: deleted, or made newlines and spaces. Returns a writable buffer."""
    rare = raw.translate(None, _NOT_RARE)
    data = np.frombuffer(bytearray(raw.translate(_SINGLE_BYTES) if rare else raw), np.uint8)
    returns = rare.count(b"\r")
    breaks = rare.count(b"\v") + rare.count(b"\f")
    tabs = rare.count(b"\t")
    counts["spaces"] += tabs
    counts["line_breaks"] += returns + breaks
    counts["controls"] += len(rare) - returns - breaks - tabs
    if returns:
        at = np.flatnonzero(data == CARRIAGE_RETURN)
        following = np.frombuffer(raw, np.uint8)[np.minimum(at + 1, len(raw) - 1)]
        # At the end of one text and before a newline that starts the next it makes no difference:
        # white space at the ends goes.
        data[at] = np.where(following == NEWLINE, DELETED, NEWLINE)
    return data


# (first byte, second byte or None, range of the last byte, what it becomes, counted as)
_RULES: tuple[tuple[int, int | None, tuple[int, int], int, str], ...] = (
    (0xC2, None, (0x85, 0x85), NEWLINE, "line_breaks"),  # U+0085 next line
    (0xC2, None, (0x80, 0x9F), DELETED, "controls"),  # U+0080-009F, C1 controls
    (0xC2, None, (0xA0, 0xA0), SPACE, "spaces"),  # U+00A0 no-break space
    (0xC2, None, (0xAD, 0xAD), DELETED, "invisible"),  # U+00AD soft hyphen
    (0xE1, 0x9A, (0x80, 0x80), SPACE, "spaces"),  # U+1680 ogham space
    (0xE2, 0x80, (0x80, 0x8A), SPACE, "spaces"),  # U+2000-200A typographic spaces
    (0xE2, 0x80, (0x8B, 0x8B), DELETED, "invisible"),  # U+200B zero width space
    (0xE2, 0x80, (0x8E, 0x8F), DELETED, "invisible"),  # U+200E-200F direction marks
    (0xE2, 0x80, (0xA8, 0xA9), NEWLINE, "line_breaks"),  # U+2028-2029 separators
    (0xE2, 0x80, (0xAA, 0xAE), DELETED, "invisible"),  # U+202A-202E direction overrides
    (0xE2, 0x80, (0xAF, 0xAF), SPACE, "spaces"),  # U+202F narrow no-break space
    (0xE2, 0x81, (0x9F, 0x9F), SPACE, "spaces"),  # U+205F mathematical space
    (0xE2, 0x81, (0xA0, 0xAF), DELETED, "invisible"),  # U+2060-206F joiners, isolates
    (0xE3, 0x80, (0x80, 0x80), SPACE, "spaces"),  # U+3000 ideographic space
    (0xEF, 0xBB, (0xBF, 0xBF), DELETED, "invisible"),  # U+FEFF byte order mark
)
# U+200C and U+200D stay: they change how Persian, Indic scripts and emoji are read.

_RULE_LEADS = np.isin(np.arange(256), [rule[0] for rule in _RULES])


def _multi_bytes(data: Bytes, counts: Counter[str]) -> None:
    """Apply `_RULES` in place; the first that fits a character wins."""
    leads = np.flatnonzero(_RULE_LEADS[data])
    first = data[leads]
    # Valid UTF-8: a lead byte is followed by all of its continuation bytes.
    for lead, second, (low, high), becomes, name in _RULES:
        at = leads[first == lead]
        if second is not None:
            at = at[data[at + 1] == second]
        last = at + (1 if second is None else 2)
        hit = (data[last] >= low) & (data[last] <= high)
        if not hit.any():
            continue
        at, last = at[hit], last[hit]
        data[at] = becomes
        data[last] = DELETED
        if second is not None:
            data[at + 1] = DELETED
        counts[name] += len(at)


def _delete(data: Bytes, offsets: Offsets) -> tuple[Bytes, Offsets]:
    """Take out the bytes that are 0."""
    deleted = np.flatnonzero(data == DELETED)
    if not len(deleted):
        return data, offsets
    return data[data != DELETED], offsets - np.searchsorted(deleted, offsets)


def _not_inert() -> npt.NDArray[np.bool_]:
    """By lead byte: whether NFC may change a character or what stands before it."""
    table = np.zeros(256, np.bool_)
    table[0xCC:0xD0] = True  # combining marks, Greek
    table[0xD2] = True
    table[0xD4:0xE4] = True  # Armenian to kana; E1, E2, E3 are looked at closer
    table[0xEA] = table[0xED] = table[0xEE] = table[0xEF] = True
    table[0xF0:0xF5] = True
    return table


_NOT_INERT = _not_inert()


def nfc_candidates(data: Bytes, offsets: Offsets) -> npt.NDArray[np.int64]:
    """Indices of the texts that NFC may change: a quick check on lead bytes, never too few.

    Latin, Cyrillic, Vietnamese, Chinese, Japanese, composed Korean, punctuation and emoji pass.
    """
    at = np.flatnonzero(_NOT_INERT[data])
    if not len(at):
        return np.zeros(0, np.int64)
    lead = data[at]
    second = data[np.minimum(at + 1, len(data) - 1)]
    third = data[np.minimum(at + 2, len(data) - 1)]
    inert = (
        ((lead == 0xE1) & ((second == 0xBA) | (second == 0xBB)))
        | ((lead == 0xE2) & (second == 0x80) & (third >= 0x82))
        | ((lead == 0xE3) & (second == 0x80) & (third < 0xAA))
        | ((lead == 0xE3) & (second == 0x82) & (third != 0x99) & (third != 0x9A))
        | ((lead == 0xE3) & ((second == 0x81) | (second >= 0x83)))
        | ((lead == 0xEA) & (second >= 0xB0))
        | ((lead == 0xED) & (second < 0x9E))
        | ((lead == 0xEF) & (second >= 0xBC))
        | ((lead == 0xF0) & (second >= 0x9F) & (second < 0xAF))
    )
    return np.unique(np.searchsorted(offsets, at[~inert], side="right") - 1)


def _compose(data: Bytes, offsets: Offsets, counts: Counter[str]) -> tuple[Bytes, Offsets]:
    candidates = nfc_candidates(data, offsets)
    pieces: list[bytes] = []
    lengths = np.diff(offsets)
    done = 0
    for index in candidates.tolist():
        start, end = int(offsets[index]), int(offsets[index + 1])
        text = data[start:end].tobytes().decode()
        composed = unicodedata.normalize("NFC", text)
        if composed != text:
            pieces += [data[done:start].tobytes(), composed.encode()]
            lengths[index] = len(pieces[-1])
            done = end
            counts["nfc_documents"] += 1
    if not pieces:
        return data, offsets
    pieces.append(data[done:].tobytes())
    joined = np.frombuffer(bytearray(b"".join(pieces)), np.uint8)
    return joined, np.concatenate(([0], np.cumsum(lengths)))


def _white_space(data: Bytes, offsets: Offsets) -> tuple[Bytes, Offsets]:
    """Single spaces inside lines, at most two newlines in a row, none at the ends."""
    if not len(data):
        return data, offsets
    filled = offsets[1:] > offsets[:-1]
    last = offsets[1:][filled] - 1
    is_space = data == SPACE
    blank = is_space | (data == NEWLINE)
    before_blank = np.append(blank[1:], True)
    before_blank[last] = True
    data[is_space & before_blank] = DELETED
    data, offsets = _delete(data, offsets)
    if not len(data):
        return data, offsets
    # Runs of spaces are single now, and none stands before a newline.
    is_newline = data == NEWLINE
    after_newline = np.append(False, is_newline[:-1])
    first = offsets[:-1][offsets[1:] > offsets[:-1]]
    after_newline[first] = False
    third = is_newline & after_newline
    third[1:] &= after_newline[:-1]
    data[third | ((data == SPACE) & after_newline)] = DELETED
    data, offsets = _delete(data, offsets)
    _strip(data, offsets)
    return _delete(data, offsets)


def _strip(data: Bytes, offsets: Offsets) -> None:
    """Mark white space at both ends of each text; there are a few bytes of it at most."""
    for at, step in ((offsets[:-1].copy(), 1), (offsets[1:] - 1, -1)):
        low, high = offsets[:-1], offsets[1:]
        inside = (at >= low) & (at < high)
        at, low, high = at[inside], low[inside], high[inside]
        while len(at):
            hit = (data[at] == SPACE) | (data[at] == NEWLINE) | (data[at] == DELETED)
            data[at[hit]] = DELETED
            at, low, high = at[hit] + step, low[hit], high[hit]
            inside = (at >= low) & (at < high)
            at, low, high = at[inside], low[inside], high[inside]
