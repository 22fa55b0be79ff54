"""Which engine tokenises: the fastest that is equal to `tokenizers` on a sample, id for id."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import pyarrow as pa

from stages.text.buffers import text_buffer
from stages.text.engines import ENGINES, EngineFailed, EngineMissing
from stages.text.wordpiece import Tokenizer

Wanted = Literal["auto", "nanotoken", "dictionary", "tokenizers"]

HARD_STRINGS = (
    "[MASK] [SEP][PAD] ##ing [unused0] a|b | \u2212 \u2014 «x„ $^`~+<=> 1\u20442 Ⅷ ½",
    "ÉTÉ caf\u00e9 cafe\u0301 Straße ẞ İstanbul ΣΊΣΥΦΟΣ \ufb01x Ạ\u0301 x\u0323\u0307 \u0307\u0323",
    "紅樓夢a中b；日本語の \U00020000x \uf900 가\u1100\u1161 ไทย",
    "हिन्दी में। \u0627\u0644\u0651 \u05e9\u05b8\u05c1 \U0001f469\u200d\U0001f467\ufe0f",
    "a\x00b\x0bc\x0cd\x85e\u2028f\u200bg\ufffdh\u00a0i\u3000j\u00adk\tl\rm\x7fn\ufeffo\U000e0001",
    f"{'a' * 99} {'b' * 100} {'c' * 101} {'é' * 100} {'é' * 101}",
)
"""Where tokenisers have been seen to differ: tried beside every sample."""

SAMPLE_TEXTS = 32
SAMPLE_BYTES = 200
"""A sample is so many bytes of each of so many texts. More would soon cost more than all the rest:
`tokenizers` takes 50 times as long for a byte as the fastest engine."""


def sample(texts: pa.Array) -> list[str]:
    """Pieces of texts spread over a column, taken nearer to the text's end from one to the next."""
    data, offsets = text_buffer(texts)
    count = min(SAMPLE_TEXTS, len(texts))
    pieces = []
    for number, row in enumerate(np.linspace(0, len(texts) - 1, count).astype(int).tolist()):
        text = data[offsets[row] : offsets[row + 1]]
        begin = max(0, len(text) - SAMPLE_BYTES) * number // count
        # A character that is cut at either end is left out.
        pieces.append(text[begin : begin + SAMPLE_BYTES].tobytes().decode("utf-8", "ignore"))
    return pieces


def choose_engine(tokenizer: Tokenizer, wanted: Wanted, texts: Sequence[str]) -> list[str]:
    """Set `tokenizer.engine` to the fastest one, from `wanted` on, that is equal on `texts`.

    Args:
        tokenizer: gets the engine; one that was there before does not count.
        wanted: "auto" begins with the fastest of all.
        texts: a sample of what is to be tokenised; HARD_STRINGS are tried beside it.

    Returns:
        A sentence for each engine that was passed over.
    """
    tried = [*HARD_STRINGS, *texts]
    passed_over = []
    for engine in ENGINES[0 if wanted == "auto" else ENGINES.index(wanted) :]:
        tokenizer.engine = engine
        if engine == ENGINES[-1]:
            break
        try:
            differences = tokenizer.parity_check(tried)
        except (EngineMissing, EngineFailed) as error:
            passed_over.append(f"tokeniser {engine} is not used, a slower one is: {error}")
            continue
        if not differences:
            break
        passed_over.append(
            f"tokeniser {engine} is not used, a slower one is: it differs from tokenizers on "
            f"{len(differences)} of {len(tried)} texts (e.g. {differences[0].text[:80]!r})"
        )
    return passed_over
