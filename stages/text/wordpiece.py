"""Text to WordPiece ids, each distinct chunk of text tokenised once.

`tokenizers` (BertNormalizer, BertPreTokenizer, WordPiece) says what the ids are. The dictionary
engine cuts a batch into chunks (`stages.text.words.cut`), sends the chunks it has not seen before
through `tokenizers`, and gathers the ids of all others from a table that it keeps between batches.
The plain engine sends every sentence through `tokenizers`: slow, and the one to fall back on when
`Tokenizer.parity_check` finds a difference.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import tokenizers
from tokenizers.models import WordPiece
from tokenizers.pre_tokenizers import BertPreTokenizer

from stages.text.buffers import text_buffer
from stages.text.special_tokens import SPECIAL_TOKENS
from stages.text.words import (
    SEPARATOR,
    ByteArray,
    Int64Array,
    Normalisation,
    blocks,
    cut,
    joined,
    normaliser,
)

UNKNOWN_TOKEN = "[UNK]"
CONTINUATION = "##"
CACHE_CHUNKS = 1_000_000
CACHE_BYTES = 64_000_000
"""The dictionary is emptied when it passes either figure: about 200 MB of memory at most."""

Engine = Literal["dictionary", "tokenizers"]
Ids = npt.NDArray[np.uint32]
Flags = npt.NDArray[np.bool_]
_UNUSED = re.compile(r"\[unused\d+\]")


@dataclass(frozen=True)
class Encoded:
    """Tokenised documents, flat.

    Attributes:
        ids: uint32 [T], all tokens end to end; no special tokens around sentences.
        sentence_offsets: int64 [S + 1], where each sentence begins in `ids`; none is empty.
        document_offsets: int64 [D + 1], where each document begins among the sentences. A document
            may have none.
        dropped_sentences: sentences left out because they gave no token.
    """

    ids: Ids
    sentence_offsets: Int64Array
    document_offsets: Int64Array
    dropped_sentences: int


@dataclass(frozen=True)
class Difference:
    """A text that the two engines tokenise differently."""

    text: str
    ids: list[int]
    reference: list[int]


class Tokenizer:
    """WordPiece over a vocabulary. Special tokens are never made from text.

    "[MASK]" in a text is two brackets and letters. The one special id that text can give is
    [UNK], for a word that the vocabulary cannot spell. Picklable; the dictionary is not pickled.

    Attributes:
        vocab: the tokens by id.
        normalisation: what is done to text first.
        max_word_characters: longer words (after normalisation) become [UNK].
        engine: "dictionary" or "tokenizers"; both give the same ids.
        unknown_id: the id of [UNK].
        is_continuation: bool [V], tokens that begin with "##".
        is_special: bool [V], the special tokens.
        is_ordinary: bool [V], neither special nor one of BERT's "[unused12]".
    """

    def __init__(
        self,
        vocab: Sequence[str],
        normalisation: Normalisation,
        max_word_characters: int = 100,
        engine: Engine = "dictionary",
        special_tokens: Sequence[str] = SPECIAL_TOKENS,
    ) -> None:
        """Make a tokeniser.

        Raises:
            ValueError: a token stands twice, or a special token or [UNK] is missing.
        """
        self.vocab = list(vocab)
        self.normalisation = normalisation
        self.max_word_characters = max_word_characters
        self.engine: Engine = engine
        self.special_tokens = tuple(special_tokens)
        self._ids = {token: index for index, token in enumerate(self.vocab)}
        if len(self._ids) < len(self.vocab):
            twice = next(t for i, t in enumerate(self.vocab) if self._ids[t] != i)
            raise ValueError(f"the vocabulary holds {twice!r} twice")
        for token in (UNKNOWN_TOKEN, *self.special_tokens):
            if token not in self._ids:
                raise ValueError(f"the vocabulary lacks the special token {token}")
        self.unknown_id = self._ids[UNKNOWN_TOKEN]
        special = set(self.special_tokens)
        self.is_continuation: Flags = np.array(
            [t.startswith(CONTINUATION) and t != CONTINUATION for t in self.vocab], bool
        )
        self.is_special: Flags = np.array([t in special for t in self.vocab], bool)
        self.is_ordinary: Flags = ~self.is_special & np.array(
            [_UNUSED.fullmatch(t) is None for t in self.vocab], bool
        )
        self._start()

    def _start(self) -> None:
        # With a separator of its own in the vocabulary, one call can hold many chunks. No other
        # word's pieces change by it: the pre-tokeniser lets no word but "|" itself hold a "|".
        self._separator_id = self._ids.get(SEPARATOR, len(self.vocab))
        self._plain = self._reference(self._ids)
        self._grouped = self._reference({**self._ids, SEPARATOR: self._separator_id})
        self._forget()

    def _forget(self) -> None:
        """Empty the dictionary; it always knows the separator itself."""
        self._known: dict[bytes, int] = {}
        self._known_bytes = 0
        self._pieces: Ids = np.array([self._ids.get(SEPARATOR, self.unknown_id)], np.uint32)
        self._piece_offsets: Int64Array = np.array([0, 1], np.int64)

    def _reference(self, vocab: dict[str, int]) -> tokenizers.Tokenizer:
        """`tokenizers`' own pipeline, without added tokens, so that text never makes one."""
        model = WordPiece(
            vocab, unk_token=UNKNOWN_TOKEN, max_input_chars_per_word=self.max_word_characters
        )
        tokenizer = tokenizers.Tokenizer(model)
        tokenizer.normalizer = normaliser(self.normalisation)
        tokenizer.pre_tokenizer = BertPreTokenizer()
        return tokenizer

    def __getstate__(self) -> dict[str, Any]:
        left_out = {"_plain", "_grouped", "_known", "_known_bytes", "_pieces", "_piece_offsets"}
        return {key: value for key, value in self.__dict__.items() if key not in left_out}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._start()

    def encode(self, texts: pa.Array, sentence_ends: pa.ListArray) -> Encoded:
        """Tokenise documents sentence by sentence.

        Args:
            texts: string or large_string [D], no nulls. Batches of 4 to 8 MB are best.
            sentence_ends: list<uint32> [D], where each sentence of a document ends: ascending
                byte positions from the document's first byte. A sentence begins where the last one
                ended. What follows the last end may only be white space.

        Raises:
            ValueError: nulls, ends out of order or outside of the text, text after the last end.
        """
        data, offsets = text_buffer(texts)
        ends, counts = _sentence_ends(sentence_ends, data, offsets)
        first_sentence = _offsets(counts)
        encode_block = self._encode_plain if self.engine == "tokenizers" else self._encode_block
        ids: list[Ids] = [np.zeros(0, np.uint32)]
        lengths: list[Int64Array] = [np.zeros(0, np.int64)]
        for first, last in blocks(offsets):
            begin = offsets[first]
            block_ends = ends[first_sentence[first] : first_sentence[last]] - begin
            block_ids, block_lengths = encode_block(
                data[begin : offsets[last]], offsets[first:last] - begin, block_ends
            )
            ids.append(block_ids)
            lengths.append(block_lengths)
        length = np.concatenate(lengths)
        kept = length > 0
        kept_before = _offsets(kept.astype(np.int64))
        return Encoded(
            ids=np.concatenate(ids),
            sentence_offsets=_offsets(length[kept]),
            document_offsets=kept_before[first_sentence],
            dropped_sentences=int(kept.size - kept_before[-1]),
        )

    def _encode_block(
        self, data: ByteArray, begins: Int64Array, ends: Int64Array
    ) -> tuple[Ids, Int64Array]:
        """Ids of a block, and how many tokens each sentence has."""
        chunks = cut(data, np.concatenate([begins, ends]), self.normalisation)
        known = self._look_up(chunks.distinct.to_pylist())
        first_piece = self._piece_offsets[known]
        piece_count = self._piece_offsets[known + 1] - first_piece
        count = piece_count[chunks.indices]
        offsets = _offsets(count)
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
        parts: list[npt.NDArray[np.int64]] = []
        for size, text in joined(chunks):
            encoding = self._grouped.encode(text, add_special_tokens=False)
            part = np.array([*encoding.ids, self._separator_id], np.int64)
            parts.append(part)
            found = int((part == self._separator_id).sum())
            if found != size:
                raise AssertionError(f"{size} chunks went in and {found} came out")
        flat = np.concatenate(parts)
        is_separator = flat == self._separator_id
        counts = np.diff(np.flatnonzero(is_separator), prepend=-1) - 1
        self._pieces = np.concatenate([self._pieces, flat[~is_separator].astype(np.uint32)])
        self._piece_offsets = np.concatenate(
            [self._piece_offsets, self._piece_offsets[-1] + np.cumsum(counts)]
        )

    def _encode_plain(
        self, data: ByteArray, begins: Int64Array, ends: Int64Array
    ) -> tuple[Ids, Int64Array]:
        """As `_encode_block`, every sentence through `tokenizers`."""
        text = data.tobytes()
        starts = np.concatenate([[0], ends[:-1]]) if ends.size else ends
        sentences = [
            text[a:b].decode() for a, b in zip(starts.tolist(), ends.tolist(), strict=True)
        ]
        encodings = self._plain.encode_batch_fast(sentences, add_special_tokens=False)
        rows = [encoding.ids for encoding in encodings]
        return (
            np.fromiter((i for row in rows for i in row), np.uint32),
            np.array([len(row) for row in rows], np.int64),
        )

    def parity_check(self, texts: Sequence[str]) -> list[Difference]:
        """Compare the dictionary engine with `tokenizers` on whole texts; [] when all is well."""
        column = pa.array(texts, pa.large_string())
        _, offsets = text_buffer(column)
        lengths = np.diff(offsets)
        ends = pa.array([[int(n)] if n else [] for n in lengths], pa.list_(pa.uint32()))
        ours = self.encode(column, ends)
        borders = ours.sentence_offsets[ours.document_offsets]
        encodings = self._plain.encode_batch_fast(list(texts), add_special_tokens=False)
        found = []
        for row, text in enumerate(texts):
            ids = ours.ids[borders[row] : borders[row + 1]].tolist()
            reference = encodings[row].ids
            if ids != reference:
                found.append(Difference(text, ids, reference))
        return found


def _offsets(counts: Int64Array) -> Int64Array:
    """[n] counts -> [n + 1] offsets."""
    offsets = np.zeros(counts.size + 1, np.int64)
    np.cumsum(counts, out=offsets[1:])
    return offsets


def _sentence_ends(
    sentence_ends: pa.ListArray, data: ByteArray, offsets: Int64Array
) -> tuple[Int64Array, Int64Array]:
    """Check the sentence ends of documents.

    Returns:
        int64 [S] ends as positions in `data`, and int64 [D] how many each document has.
    """
    if isinstance(sentence_ends, pa.ChunkedArray):
        sentence_ends = sentence_ends.combine_chunks()
    documents = len(offsets) - 1
    if len(sentence_ends) != documents or sentence_ends.null_count:
        raise ValueError(
            f"{documents} texts need as many lists of sentence ends without nulls, not "
            f"{len(sentence_ends)} with {sentence_ends.null_count} nulls"
        )
    list_offsets = sentence_ends.offsets.to_numpy().astype(np.int64)
    values = sentence_ends.values.to_numpy(zero_copy_only=False)
    ends = values[list_offsets[0] : list_offsets[-1]].astype(np.int64)
    counts = np.diff(list_offsets)
    owner = np.repeat(np.arange(documents), counts)
    ends += offsets[:-1][owner]
    begins = np.concatenate([offsets[:1], ends[:-1]]) if ends.size else ends
    first = _offsets(counts)[:-1][counts > 0]
    begins[first] = offsets[:-1][counts > 0]
    wrong = np.flatnonzero((ends < begins) | (ends > offsets[1:][owner]))
    if wrong.size:
        raise ValueError(f"document {owner[wrong[0]]}: sentence ends out of order or of range")
    last_end = offsets[:-1].copy()
    last_end[counts > 0] = ends[(_offsets(counts)[1:] - 1)[counts > 0]]
    for document in np.flatnonzero(last_end < offsets[1:]).tolist():
        tail = data[last_end[document] : offsets[document + 1]].tobytes()
        if tail.strip(b" \t\n\r"):
            raise ValueError(f"document {document}: text after its last sentence end would be lost")
    return ends, counts
