"""Every engine against `tokenizers`, id for id; then how fast each is.

    python bench/parity.py [--strings 50000] [--megabytes 14] [--rounds 5] [--speed-only]

Texts: every corpus of `../shared/data`, generated Unicode strings, and every code point alone and
between letters; Google's three vocabularies and one trained on the corpora; all eight settings of
the normaliser (the corpora: the four with and without case and accents). Exits 1 on a difference.
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
import sys
import time
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from stages.text.engines import ENGINES
from stages.text.vocabulary import train
from stages.text.wordpiece import Tokenizer
from stages.text.words import Normalisation, count_words
from tests.oracle.real_text import google_vocab, whole_corpora
from tests.oracle.unicode_strings import unicode_strings

SETTINGS = [Normalisation(*switches) for switches in itertools.product((True, False), repeat=3)]
CORPUS_SETTINGS = [n for n in SETTINGS if n.chinese_characters]


def code_points() -> list[str]:
    """Each assigned code point between letters and before a combining mark."""
    points = (chr(c) for c in range(0x110000) if not 0xD800 <= c < 0xE000)
    kept = [c for c in points if unicodedata.category(c) not in {"Co", "Cn"}]
    return [f"x{c}y {c}\u0301a" for c in kept]


def sentences_of(texts: Sequence[str]) -> tuple[pa.Array, pa.ListArray]:
    """Texts as a column, cut into sentences after each ". " and line end."""
    column = pa.array(texts, pa.large_string())
    ends = []
    for text in texts:
        data = np.frombuffer(text.encode(), np.uint8)
        places = np.flatnonzero((data[:-1] == ord(".")) & (data[1:] == ord(" "))) + 2
        places = np.concatenate([places, np.flatnonzero(data == ord("\n")) + 1, [data.size]])
        ends.append(np.unique(places[places > 0]).tolist())
    return column, pa.array(ends, pa.list_(pa.uint32()))


def compare(name: str, tokenizer: Tokenizer, texts: Sequence[str]) -> int:
    """How many engines do not give the reference's bytes for `texts`; says where they differ."""
    differing = 0
    column, ends = sentences_of(texts)
    tokenizer.engine = "tokenizers"
    expected = tokenizer.encode(column, ends)
    for tokenizer.engine in ENGINES[:-1]:
        found = tokenizer.encode(column, ends)
        same = all(
            getattr(found, part).tobytes() == getattr(expected, part).tobytes()
            for part in ("ids", "sentence_offsets", "document_offsets")
        )
        differing += not same
        if not same:
            example = tokenizer.parity_check(texts)[:1]
            print(f"DIFFERENT {name} {tokenizer.engine} {tokenizer.normalisation}: {example}")
    return differing


def speeds(texts: Sequence[str], rounds: int) -> None:
    """Print MB a CPU second of each engine on one thread, cold (nothing kept) and warm, in turn."""
    column, ends = sentences_of(texts)
    size = sum(len(text.encode()) for text in texts) / 1e6
    vocab = google_vocab("uncased")
    found: dict[str, list[float]] = {}
    os.environ["TOKENIZERS_PARALLELISM"] = "false"

    def clock(name: str, work: Callable[[], object]) -> None:
        began = time.process_time()
        work()
        found.setdefault(name, []).append(size / (time.process_time() - began))

    for number in range(rounds):
        for engine in ENGINES:
            tokenizer = Tokenizer(vocab, Normalisation(), engine=engine)
            work = partial(tokenizer.encode, column, ends)
            if engine == "tokenizers":
                if number == 0:
                    clock(engine, work)
                continue
            clock(f"{engine}, cold", work)
            clock(f"{engine}, warm", work)
    print(f"{size:.1f} MB, {len(ends.values):,} sentences")
    for name, values in found.items():
        print(f"{name:20} {statistics.median(values):7.1f} MB/s a core")


def compare_all(corpora: Mapping[str, Sequence[str]], strings: int) -> int:
    """Compare on everything; how many comparisons found a difference."""
    everything = pa.array([text[:50_000] for texts in corpora.values() for text in texts])
    differing = compared = 0
    generated = {
        f"{strings:,} generated strings": unicode_strings(strings),
        "every code point": code_points(),
    }
    for normalisation in SETTINGS:
        words, counts = count_words(everything, normalisation)
        trained, _ = train(words, counts, 12_000, limit_alphabet=4_000)
        vocabularies = {name: google_vocab(name) for name in ("uncased", "cased", "chinese")}
        vocabularies["trained"] = trained
        for vocabulary, vocab in vocabularies.items():
            tokenizer = Tokenizer(vocab, normalisation)
            texts: dict[str, Sequence[str]] = dict(generated)
            if normalisation in CORPUS_SETTINGS:
                texts |= corpora
            for name, sample in texts.items():
                differing += compare(f"{vocabulary}: {name}", tokenizer, sample)
                compared += 1
        print(f"{normalisation}: {compared} comparisons so far, {differing} differ", flush=True)
    size = sum(len(t.encode()) for texts in corpora.values() for t in texts) / 1e6
    print(f"{len(corpora)} corpora of {size:.1f} MB, and {', '.join(generated)}")
    return differing


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--strings", type=int, default=50_000)
    parser.add_argument("--megabytes", type=float, default=14.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--speed-only", action="store_true")
    arguments = parser.parse_args()

    corpora = whole_corpora()
    differing = 0 if arguments.speed_only else compare_all(corpora, arguments.strings)
    english = [
        text
        for name, texts in corpora.items()
        if name.startswith(("gutenberg-en", "peps", "bert-format/wiki", "wikitext"))
        for text in texts
    ]
    lengths = np.cumsum([len(text.encode()) for text in english])
    speeds(
        english[: int(np.searchsorted(lengths, arguments.megabytes * 1e6)) + 1], arguments.rounds
    )
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
