"""The mask kernel's options from the configuration: the same ahead of training and within it."""

from __future__ import annotations

import numpy as np

from pipeline.stage import StageError
from stages.config import MaskConfig
from stages.text.masking import MaskOptions
from stages.text.wordpiece import Tokenizer


def mask_options(config: MaskConfig, tokenizer: Tokenizer) -> MaskOptions:
    """What `mask_rows` takes; `config.max_predictions` must be set.

    Raises:
        StageError: `mask.never` holds what is no entry of the vocabulary.
    """
    assert config.max_predictions is not None
    place = {token: number for number, token in enumerate(tokenizer.vocab)}
    unknown = [token for token in config.never if token not in place]
    if unknown:
        raise StageError(
            f"mask.never: {unknown[0]!r} is no entry of the vocabulary: give entries as they stand "
            "in vocab.txt (lower-cased if it is, pieces with ##)"
        )
    never = np.zeros(len(tokenizer.vocab), dtype=np.bool_)
    never[[place[token] for token in config.never]] = True
    return MaskOptions(
        cls_id=place["[CLS]"],
        sep_id=place["[SEP]"],
        mask_id=place["[MASK]"],
        ordinary=tokenizer.is_ordinary & ~never,
        continuation=tokenizer.is_continuation,
        max_predictions=config.max_predictions,
        strategy=config.strategy,
        probability=config.probability,
        mask_share=config.mask_share,
        random_share=config.random_share,
        never=never if never.any() else None,
        span_probability=config.span_probability,
        span_words=config.span_words,
        span_together=config.span_together,
    )
