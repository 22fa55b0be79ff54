"""Three ways from bytes to WordPiece ids, equal id for id.

`tokenizers` (BertNormalizer, BertPreTokenizer, WordPiece) says what the ids are, and is the slow
one. `nanotoken` does the same in Rust, byte slices in and flat ids out. The dictionary cuts a block
into chunks (`stages.text.words.cut`), sends the chunks that it has not seen before through
`tokenizers`, and gathers the ids of all others from a table that it keeps between blocks.
"""

from __future__ import annotations

import importlib
from typing import Any, Literal, Protocol, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import tokenizers

from stages.text.words import SEPARATOR, ByteArray, Int64Array, Normalisation, cut, joined

CACHE_CHUNKS = 1_000_000
CACHE_BYTES = 64_000_000
"""The dictionary is emptied when it passes either figure: about 200 MB of memory at most."""

Engine = Literal["nanotoken", "dictionary", "tokenizers"]
ENGINES: tuple[Engine, ...] = ("nanotoken", "dictionary", "tokenizers")
"""Fastest first; the last one is the reference."""

Ids = npt.NDArray[np.uint32]


class EngineMissing(ImportError):  # noqa: N818 - reads as a sentence
    """An engine cannot be used here: its library is not installed, or does not load."""


class EngineFailed(Exception):  # noqa: N818 - reads as a sentence
    """An engine broke down over a text."""


class BlockEncoder(Protocol):
    """One engine over one vocabulary."""

    def __call__(
        self, data: ByteArray, begins: Int64Array, ends: Int64Array
    ) -> tuple[Ids, Int64Array]:
        """Tokenise a block.

        Args:
            data: uint8 [n], documents end to end as UTF-8.
            begins: int64 [D], where each document begins.
            ends: int64 [S], where each sentence ends; the next one begins there.

        Returns:
            uint32 [T] ids end to end, and int64 [S] how many each sentence has.
        """
        ...


class Plain:
    """Every sentence through `tokenizers`."""

    def __init__(self, reference: tokenizers.Tokenizer) -> None:
        self._reference = reference

    def __call__(
        self, data: ByteArray, begins: Int64Array, ends: Int64Array
    ) -> tuple[Ids, Int64Array]:
        """As `BlockEncoder` says."""
        sentences = [sentence.decode() for sentence in _sentences(data, ends)]
        encodings = self._reference.encode_batch_fast(sentences, add_special_tokens=False)
        rows = [encoding.ids for encoding in encodings]
        return (
            np.fromiter((i for row in rows for i in row), np.uint32),
            np.array([len(row) for row in rows], np.int64),
        )


CACHED_WORDS = 131_072


class Nanotoken:
    """Every sentence through `nanotoken`, which keeps the words that it saw last (30 MB).

    Raises:
        EngineMissing: the library is not there, does not load, or cannot express the pipeline.
    """

    def __init__(self, reference: tokenizers.Tokenizer) -> None:
        try:
            library = importlib.import_module("nanotoken")
            # Of the process, and read when an encoder is made. Its own choice, eight times as many,
            # takes 130 MB more and is no faster.
            importlib.import_module("nanotoken.nanotoken_rs").set_cache_entries(CACHED_WORDS)
            self._encoder = library.WordPieceTokenizer.from_json(reference.to_str())
        # A young library: whatever it raises while it loads, there is another engine.
        except Exception as error:
            raise EngineMissing(f"{type(error).__name__}: {error}") from error

    def __call__(
        self, data: ByteArray, begins: Int64Array, ends: Int64Array
    ) -> tuple[Ids, Int64Array]:
        """As `BlockEncoder` says."""
        sentences = _sentences(data, ends)
        try:
            # One thread: a worker is given one CPU.
            ids, offsets = self._encoder.encode_batch(
                sentences, add_special_tokens=False, parallel=False
            )
        except (KeyboardInterrupt, SystemExit):
            raise
        # A panic in Rust is no Exception, and would end the worker without a word.
        except BaseException as error:
            raise EngineFailed(
                f"nanotoken: {error!r:.300}; try speed.tokenizer=dictionary"
            ) from error
        return ids, np.diff(offsets)


class Dictionary:
    """Each distinct chunk of text through `tokenizers` once.

    Args:
        reference: makes the ids. It must know SEPARATOR as an entry.
        separator_id: the id of SEPARATOR in `reference`: an entry of its own, so that one call can
            hold many chunks.
        separator_text_id: the id that SEPARATOR has when it stands in a text.
        normalisation: as the reference's; decides where text may be cut.
    """

    def __init__(
        self,
        reference: tokenizers.Tokenizer,
        separator_id: int,
        separator_text_id: int,
        normalisation: Normalisation,
    ) -> None:
        self._reference = reference
        self._separator_id = separator_id
        self._separator_text_id = separator_text_id
        self._normalisation = normalisation
        self._forget()

    def _forget(self) -> None:
        """Empty the dictionary; it always knows the separator itself."""
        self._known: dict[bytes, int] = {}
        self._known_bytes = 0
        self._pieces: Ids = np.array([self._separator_text_id], np.uint32)
        self._piece_offsets: Int64Array = np.array([0, 1], np.int64)

    def __call__(
        self, data: ByteArray, begins: Int64Array, ends: Int64Array
    ) -> tuple[Ids, Int64Array]:
        """As `BlockEncoder` says."""
        chunks = cut(data, np.concatenate([begins, ends]), self._normalisation)
        known = self._look_up(chunks.distinct.to_pylist())
        first_piece = self._piece_offsets[known]
        piece_count = self._piece_offsets[known + 1] - first_piece
        count = piece_count[chunks.indices]
        offsets = np.concatenate([[0], np.cumsum(count)])
        where = np.repeat(first_piece[chunks.indices] - offsets[:-1], count)
        where += np.arange(where.size)
        borders = offsets[np.searchsorted(chunks.starts, ends)]
        return self._pieces[where], np.diff(borders, prepend=0)

    def _look_up(self, chunks: list[bytes]) -> Int64Array:
        """Rows of the dictionary for distinct chunks; new ones are tokenised and added."""
        if len(self._known) > CACHE_CHUNKS or self._known_bytes > CACHE_BYTES:
            self._forget()
        known = self._known
        separator = SEPARATOR.encode()
        new: list[bytes] = []
        for chunk in chunks:
            if chunk not in known:
                if chunk.rstrip(b" ") == separator:
                    known[chunk] = 0
                else:
                    new.append(chunk)
        if new:
            row = len(self._piece_offsets) - 1
            self._learn([chunk.decode() for chunk in new])
            known.update(zip(new, range(row, row + len(new)), strict=True))
            self._known_bytes += sum(map(len, new))
        return np.fromiter(map(known.__getitem__, chunks), np.int64, len(chunks))

    def _learn(self, chunks: list[str]) -> None:
        """Tokenise new chunks and append them to the table."""
        parts: list[Ids] = []
        for size, text in joined(chunks):
            # A batch of one: without the offsets that `encode` makes, and on one thread.
            (encoding,) = self._reference.encode_batch_fast([text], add_special_tokens=False)
            part = np.array([*encoding.ids, self._separator_id], np.uint32)
            parts.append(part)
            found = int((part == self._separator_id).sum())
            if found != size:
                raise AssertionError(f"{size} chunks went in and {found} came out")
        flat = np.concatenate(parts)
        is_separator = flat == self._separator_id
        counts = np.diff(np.flatnonzero(is_separator), prepend=-1) - 1
        self._pieces = np.concatenate([self._pieces, flat[~is_separator]])
        self._piece_offsets = np.concatenate(
            [self._piece_offsets, self._piece_offsets[-1] + np.cumsum(counts)]
        )


def _sentences(data: ByteArray, ends: Int64Array) -> list[bytes]:
    """The bytes of each sentence."""
    offsets = np.concatenate([[0], ends])
    buffers: list[Any] = [None, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(data))]
    column = pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(ends), buffers)
    return cast(list[bytes], column.to_pylist())
