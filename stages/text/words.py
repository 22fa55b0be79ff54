"""Words as BERT sees them: bulk cutting of text into chunks, and exact counts of words.

BERT's normaliser and pre-tokeniser work on one character at a time, with two exceptions: characters
that are removed join their neighbours, and combining marks are put in order between two starters.
Neither reaches across ASCII white space, ASCII punctuation or a CJK ideograph. Text can therefore
be cut there, in bulk and on bytes, and whatever costs time has to be done once for each distinct
*chunk*, not for each occurrence.

The reference for what a word is are `tokenizers`' BertNormalizer and BertPreTokenizer; nothing here
re-implements them except for chunks of printable ASCII, where lower-casing is all they do.
"""

from __future__ import annotations

import string
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer

from stages.text.buffers import text_buffer
from stages.text.word_counts import merge_counts, sum_by_name

Int64Array = npt.NDArray[np.int64]
Int32Array = npt.NDArray[np.int32]
ByteArray = npt.NDArray[np.uint8]

BLOCK_BYTES = 4_000_000
"""Text that is cut at once: larger blocks cost page faults, smaller ones more hash tables."""

SEPARATOR = "|"
"""Stands between chunks that go through `tokenizers` in one call. As ASCII punctuation it is a word
of its own, and no character decomposes into it, so it stands nowhere but where it was put."""

SEPARATOR_GROUP = 512
"""Chunks a call: enough to make the call's own cost vanish, few enough to stay in the cache."""

_WORD, _SPACE, _ALONE = 0, 1, 2
_KIND = np.zeros(256, np.uint8)
_KIND[list(b" \t\n\r")] = _SPACE  # the only control characters that BERT does not remove
_KIND[list(string.punctuation.encode())] = _ALONE
_TO_SPACE = bytes(0x20 if byte in b"\t\n\r" else byte for byte in range(256))
# U+5000 to U+9FFF: all of them ideographs, and these bytes begin nothing else.
_FIRST_IDEOGRAPH_LEAD, _LAST_IDEOGRAPH_LEAD = 0xE5, 0xE9


@dataclass(frozen=True)
class Normalisation:
    """What BERT does to text before it looks for words.

    Attributes:
        lowercase: lower-case each character.
        strip_accents: decompose (NFD) and remove combining marks. Resolved: in BERT's files null
            means "as lowercase".
        chinese_characters: each CJK ideograph is a word of its own.
    """

    lowercase: bool = True
    strip_accents: bool = True
    chinese_characters: bool = True


def normaliser(normalisation: Normalisation) -> BertNormalizer:
    """The exact reference: `tokenizers`' normaliser with these settings."""
    return BertNormalizer(
        clean_text=True,
        handle_chinese_chars=normalisation.chinese_characters,
        strip_accents=normalisation.strip_accents,
        lowercase=normalisation.lowercase,
    )


def split_words(text: str, normalisation: Normalisation) -> list[str]:
    """The words of one text by the reference: normalised, then pre-tokenised."""
    normal = normaliser(normalisation).normalize_str(text)
    return [word for word, _ in BertPreTokenizer().pre_tokenize_str(normal)]


@dataclass(frozen=True)
class Chunks:
    """A text buffer cut into chunks, dictionary-encoded.

    A chunk begins at a byte that is not white space and runs up to the next chunk's first byte, so
    it may end in spaces.

    Attributes:
        starts: int64 [n], first byte of each chunk in the buffer, ascending.
        indices: int32 [n], which of `distinct` each chunk is.
        distinct: binary [m], the distinct chunks as UTF-8, in order of their first occurrence.
    """

    starts: Int64Array
    indices: Int32Array
    distinct: pa.BinaryArray


def blocks(offsets: Int64Array, block_bytes: int = BLOCK_BYTES) -> Iterator[tuple[int, int]]:
    """Cut texts into runs [first, last) of about `block_bytes` bytes; a text is never cut."""
    first, texts = 0, len(offsets) - 1
    while first < texts:
        last = int(np.searchsorted(offsets, offsets[first] + block_bytes, side="right")) - 1
        last = min(max(last, first + 1), texts)
        yield first, last
        first = last


def cut(data: ByteArray, borders: Int64Array, normalisation: Normalisation) -> Chunks:
    """Cut a buffer of UTF-8 into chunks that can be normalised and tokenised one by one.

    Args:
        data: uint8 [n], texts end to end, below 2 GiB.
        borders: positions where a text or sentence begins: no chunk runs across them.
        normalisation: decides whether ideographs stand alone.

    Raises:
        ValueError: 2 GiB of text or more.
    """
    if data.size >= 2**31:
        raise ValueError(f"{data.size} bytes at once: cut at most {2**31 - 1}")
    if data.size == 0:
        return Chunks(np.zeros(0, np.int64), np.zeros(0, np.int32), pa.array([], pa.binary()))
    starts = _starts(data, borders, normalisation)
    offsets = np.append(starts, data.size).astype(np.int32)
    spaced = data.tobytes().translate(_TO_SPACE)
    chunks = pa.Array.from_buffers(
        pa.binary(), len(starts), [None, pa.py_buffer(offsets), pa.py_buffer(spaced)]
    )
    encoded = chunks.dictionary_encode()
    return Chunks(starts, encoded.indices.to_numpy(), encoded.dictionary)


def _starts(data: ByteArray, borders: Int64Array, normalisation: Normalisation) -> Int64Array:
    """First byte of each chunk."""
    kind = _KIND[data]
    in_word = kind == _WORD
    is_start = kind == _ALONE
    is_start[0] |= in_word[0]
    is_start[1:] |= in_word[1:] & ~in_word[:-1]
    if normalisation.chinese_characters:
        lead = np.flatnonzero((data >= _FIRST_IDEOGRAPH_LEAD) & (data <= _LAST_IDEOGRAPH_LEAD))
        is_start[lead] = True
        _start_at(is_start, kind, lead + 3)
    _start_at(is_start, kind, borders)
    return np.flatnonzero(is_start)


def _start_at(is_start: npt.NDArray[np.bool_], kind: ByteArray, places: Int64Array) -> None:
    """Let a chunk begin at each of `places` that holds something."""
    places = places[places < kind.size]
    is_start[places] |= kind[places] != _SPACE


def joined(chunks: Sequence[str]) -> Iterator[tuple[int, str]]:
    """Groups of chunks as (how many, one text with SEPARATOR between them).

    No chunk may hold the separator.
    """
    for first in range(0, len(chunks), SEPARATOR_GROUP):
        group = chunks[first : first + SEPARATOR_GROUP]
        yield len(group), SEPARATOR.join(group)


def count_words(texts: pa.Array, normalisation: Normalisation) -> tuple[pa.StringArray, Int64Array]:
    """Count BERT's words exactly.

    Args:
        texts: string or large_string [n], no nulls.
        normalisation: how text is normalised before it is cut into words.

    Returns:
        The distinct words, sorted by code points, and int64 counts, all above zero.
    """
    data, offsets = text_buffer(texts)
    parts = []
    for first, last in blocks(offsets):
        begin, end = offsets[first], offsets[last]
        chunks = cut(data[begin:end], offsets[first:last] - begin, normalisation)
        counts = np.bincount(chunks.indices, minlength=len(chunks.distinct)).astype(np.int64)
        parts.append((chunks.distinct, counts))
    chunk_names, chunk_counts = sum_by_name(parts, pa.binary())
    return _words_of_chunks(chunk_names, chunk_counts, normalisation)


def _words_of_chunks(
    chunks: pa.BinaryArray, counts: Int64Array, normalisation: Normalisation
) -> tuple[pa.StringArray, Int64Array]:
    """Normalise distinct chunks and count the words in them."""
    names = pc.ascii_rtrim(chunks.cast(pa.string()), " ")
    is_plain = pc.and_(
        pc.string_is_ascii(names), pc.invert(pc.match_substring_regex(names, r"[\x00-\x1f\x7f]"))
    )
    plain = names.filter(is_plain)
    if normalisation.lowercase:
        plain = pc.ascii_lower(plain)
    mask = is_plain.to_numpy(zero_copy_only=False)
    other_words, other_counts = _words_by_reference(
        names.filter(pc.invert(is_plain)).to_pylist(), counts[~mask], normalisation
    )
    return merge_counts([(plain, counts[mask]), (other_words, other_counts)])


def _words_by_reference(
    chunks: list[str], counts: Int64Array, normalisation: Normalisation
) -> tuple[pa.StringArray, Int64Array]:
    """The words of chunks, in order, each with its chunk's count. No chunk holds SEPARATOR."""
    reference, pre_tokeniser = normaliser(normalisation), BertPreTokenizer()
    words: list[str] = []
    owners: list[int] = []
    owner = 0
    for size, text in joined(chunks):
        begin = owner
        for word, _ in pre_tokeniser.pre_tokenize_str(reference.normalize_str(text)):
            if word == SEPARATOR:
                owner += 1
            else:
                words.append(word)
                owners.append(owner)
        owner += 1
        if owner != begin + size:
            raise AssertionError(f"{size} chunks went in and {owner - begin} came out")
    return pa.array(words, pa.string()), counts[np.array(owners, np.int64)]
