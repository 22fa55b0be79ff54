"""NVIDIA's LDDL: its own functions, on documents in memory."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from bench.peers import Missing
from bench.peers.absent import stand_ins
from bench.peers.punkt import sentence_splitter

HOW = (
    "pip install nltk transformers, then pip install --no-deps lddl==0.1.0 (it pins old releases "
    "of dask and transformers, which the functions measured do not need)"
)

UNUSED = ("dask", "dask.bag", "dask.distributed", "lddl.dask.bert.binning")
"""How LDDL spreads and writes its work; `binning` needs what only old releases of dask have."""


class Lddl:
    """`_get_documents` and `create_pairs_from_document` with masks, as `_get_pairs` calls them."""

    name = "NVIDIA LDDL"
    about = (
        "lddl 0.1.0: nltk's Punkt, BertTokenizerFast, pairs and masks by its own functions; "
        "no Dask, nothing read or written"
    )

    def __init__(self, vocab_file: Path, texts: Sequence[str]) -> None:
        try:
            import transformers

            with stand_ins({name: {} for name in UNUSED}):
                from lddl.dask.bert import pretrain
        except ImportError as error:
            raise Missing(f"{error.name or error} is not installed: {HOW}") from None
        self._functions = pretrain
        # Not by keyword: transformers 5 takes `vocab_file=` and does nothing with it.
        self._tokenizer: Any = transformers.BertTokenizerFast(str(vocab_file))
        self._vocab_words = tuple(self._tokenizer.get_vocab())
        if len(self._vocab_words) < 100:
            raise Missing(f"transformers did not load {vocab_file}")
        pretrain.nltk.tokenize.sent_tokenize = sentence_splitter(texts)
        self._length = 128

    def __call__(self, texts: Sequence[str]) -> int:
        """Documents to masked pairs; returns their number."""
        random.seed(12345)
        # LDDL's own format: a document a line, its id in front.
        lines = (f"doc-{i} {' '.join(text.split())}" for i, text in enumerate(texts))
        documents = tuple(
            self._functions._get_documents(_Bag(lines), self._tokenizer, max_length=512)
        )
        pairs: list[Any] = []
        for index in range(len(documents)):
            pairs.extend(
                self._functions.create_pairs_from_document(
                    documents,
                    index,
                    max_seq_length=self._length,
                    short_seq_prob=0.1,
                    masking=True,
                    masked_lm_ratio=0.15,
                    vocab_words=self._vocab_words,
                )
            )
        random.shuffle(pairs)
        return len(pairs)


class _Bag:
    """The two methods of a Dask bag that are called, without Dask's cost."""

    def __init__(self, items: Iterable[Any]) -> None:
        self._items = items

    def __iter__(self) -> Iterator[Any]:
        return iter(self._items)

    def map(self, function: Callable[[Any], Any]) -> _Bag:
        return _Bag(map(function, self._items))

    def filter(self, function: Callable[[Any], bool]) -> _Bag:
        return _Bag(filter(function, self._items))
