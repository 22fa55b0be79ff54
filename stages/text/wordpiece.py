"""Text to WordPiece ids, sentence by sentence, by the fastest engine that is exact.

`tokenizers` (BertNormalizer, BertPreTokenizer, WordPiece) says what the ids are; the faster engines
of `stages.text.engines` are held against it by `Tokenizer.parity_check`, and not used where they
differ.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import tokenizers
from tokenizers.models import WordPiece
from tokenizers.pre_tokenizers import BertPreTokenizer

from stages.text.buffers import text_buffer
from stages.text.engines import (
    BlockEncoder,
    Dictionary,
    Engine,
    Ids,
    Nanotoken,
    Plain,
)
from stages.text.special_tokens import SPECIAL_TOKENS
from stages.text.words import (
    SEPARATOR,
    ByteArray,
    Int64Array,
    Normalisation,
    blocks,
    normaliser,
)

UNKNOWN_TOKEN = "[UNK]"
CONTINUATION = "##"
Flags = npt.NDArray[np.bool_]
_UNUSED = re.compile(r"\[unused\d+\]")


@dataclass(frozen=True)
class Encoded:
    """Tokenised documents, flat.

    Attributes:
        ids: uint32 [T], all tokens end to end; no special tokens around sentences. (uint16 where
            `joined` was told so.)
        sentence_offsets: int64 [S + 1], where each sentence begins in `ids`; none is empty.
        document_offsets: int64 [D + 1], where each document begins among the sentences. A document
            may have none.
        dropped_sentences: sentences left out because they gave no token.
    """

    ids: npt.NDArray[np.unsignedinteger[Any]]
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
    [UNK], for a word that the vocabulary cannot spell. Picklable; what engines keep is not pickled.

    Attributes:
        vocab: the tokens by id.
        normalisation: what is done to text first.
        max_word_characters: longer words (after normalisation) become [UNK].
        engine: one of ENGINES; all give the same ids.
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
        # In bulk, for every worker loads a vocabulary.
        tokens = pa.array(self.vocab, pa.string())
        self.is_continuation: Flags = _beginning_with(tokens, CONTINUATION)
        if CONTINUATION in self._ids:
            self.is_continuation[self._ids[CONTINUATION]] = False
        self.is_special: Flags = np.zeros(len(self.vocab), bool)
        self.is_special[[self._ids[token] for token in self.special_tokens]] = True
        self.is_ordinary: Flags = ~self.is_special
        for index in np.flatnonzero(_beginning_with(tokens, "[unused")).tolist():
            self.is_ordinary[index] &= _UNUSED.fullmatch(self.vocab[index]) is None
        self._encoders: dict[Engine, BlockEncoder] = {}

    @cached_property
    def _plain(self) -> tokenizers.Tokenizer:
        """The reference. Made when it is first asked for: who only needs flags never does."""
        return self._reference(self._ids)

    @property
    def reference(self) -> tokenizers.Tokenizer:
        """`tokenizers`' own pipeline, which says where pieces stand; no text makes a special token.

        Not to be changed: the parity check holds the engines against it.
        """
        return self._plain

    def _encoder(self, engine: Engine) -> BlockEncoder:
        """An engine, made when it is first asked for.

        Raises:
            EngineMissing: its library cannot be used here.
        """
        if engine not in self._encoders:
            self._encoders[engine] = self._make(engine)
        return self._encoders[engine]

    def _make(self, engine: Engine) -> BlockEncoder:
        if engine == "tokenizers":
            return Plain(self._plain)
        if engine == "nanotoken":
            return Nanotoken(self._plain)
        # With a separator of its own in the vocabulary, one call can hold many chunks. No other
        # word's pieces change by it: the pre-tokeniser lets no word but "|" itself hold a "|".
        separator_id = self._ids.get(SEPARATOR, len(self.vocab))
        return Dictionary(
            self._reference({**self._ids, SEPARATOR: separator_id}),
            separator_id,
            self._ids.get(SEPARATOR, self.unknown_id),
            self.normalisation,
        )

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
        left_out = {"_plain", "_encoders"}
        return {key: value for key, value in self.__dict__.items() if key not in left_out}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._encoders = {}

    def encode(self, texts: pa.Array, sentence_ends: pa.ListArray) -> Encoded:
        """Tokenise documents sentence by sentence.

        Args:
            texts: string or large_string [D], no nulls. Batches of 4 to 8 MB are best.
            sentence_ends: list<uint32> [D], where each sentence of a document ends: ascending
                byte positions from the document's first byte. A sentence begins where the last one
                ended. What follows the last end may only be white space.

        Raises:
            ValueError: nulls, ends out of order or outside of the text, text after the last end.
            EngineMissing: the engine's library cannot be used here.
        """
        data, offsets = text_buffer(texts)
        ends, counts = _sentence_ends(sentence_ends, data, offsets)
        first_sentence = _offsets(counts)
        encode_block = self._encoder(self.engine)
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

    def parity_check(self, texts: Sequence[str]) -> list[Difference]:
        """Compare the engine with `tokenizers` on whole texts; [] when all is well.

        Raises:
            EngineMissing: the engine's library cannot be used here.
        """
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


def _beginning_with(tokens: pa.Array, start: str) -> Flags:
    """[V] which tokens begin so."""
    return np.array(pc.starts_with(tokens, start).to_numpy(zero_copy_only=False))


def joined(parts: Sequence[Encoded], dtype: npt.DTypeLike = np.uint32) -> Encoded:
    """Documents of several calls of `encode` in one; `dtype`: of ids, must hold all of them."""
    none = [np.zeros(0, np.int64)]
    sentences = np.concatenate(none + [np.diff(part.sentence_offsets) for part in parts])
    documents = np.concatenate(none + [np.diff(part.document_offsets) for part in parts])
    return Encoded(
        ids=np.concatenate([np.zeros(0, dtype), *(part.ids.astype(dtype) for part in parts)]),
        sentence_offsets=_offsets(sentences),
        document_offsets=_offsets(documents),
        dropped_sentences=sum(part.dropped_sentences for part in parts),
    )


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
