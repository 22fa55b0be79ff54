"""Losses of fine-tuning as sums, so that the caller divides by counts of the whole global batch.

Sequences that fill a batch up to its shape come after the others and have no label: what is
computed for them does not count.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from model.losses import exact
from model.packing import pad, padded_layout

IGNORED = -100
"""Label of what does not count: special tokens, continuation pieces, words of another window."""


def class_loss_sum(logits: Tensor, labels: Tensor) -> Tensor:
    """Sum of -log P(true class) over sequences, or over tokens (seed 5.2).

    With K = 2 over sequences this is the loss of next sentence prediction.

    Args:
        logits: [N or more, K]; rows after the first N do not count.
        labels: int64 [N], 0 to K - 1, or `IGNORED`.

    Returns:
        Scalar in nats, float32 (float64 for float64 logits); 0 when nothing counts.
    """
    counted = exact(logits[: len(labels)])
    return F.cross_entropy(counted, labels, reduction="sum", ignore_index=IGNORED)


def squared_error_sum(scores: Tensor, targets: Tensor) -> Tensor:
    """Sum of (score - target)^2 over sequences: regression, K = 1.

    Args:
        scores: [B or more, 1]; rows after the first B do not count.
        targets: floating point [B].

    Returns:
        Scalar, float32 (float64 for float64 scores).
    """
    predicted = exact(scores[: len(targets), 0])
    return F.mse_loss(predicted, targets.to(predicted.dtype), reduction="sum")


def span_loss_sum(
    scores: Tensor,
    cu_seqlens: Tensor,
    max_seqlen: int,
    starts: Tensor,
    ends: Tensor,
    may_answer: Tensor | None = None,
) -> Tensor:
    """Sum of -log P(start) - log P(end) over sequences (seed 5.2; Devlin et al. 2018, 4.2, 4.3).

    Each softmax runs over the positions of one sequence: its own, never those of padding or of a
    neighbour. A question without an answer has its start and end at [CLS], position 0.

    Args:
        scores: [T, 2], of starting and of ending at each position.
        cu_seqlens: int32 [B + 1 or more], sequences that fill up included.
        max_seqlen: no sequence is longer.
        starts, ends: int64 [B], positions in the sequence; `IGNORED` counts nothing.
        may_answer: bool [T or fewer], False where no answer may start or end (the question, say):
            such positions are left out of the softmax, as are those after its end. [CLS] must be
            True where a question may have no answer. None: all may.

    Returns:
        Scalar in nats, float32 (float64 for float64 scores).

    Raises:
        ValueError: an answer lies at a position that its sequence does not have, or that may not
            answer. It is looked for where that costs nothing, on CPU; elsewhere the loss is then
            infinite.
    """
    tokens, sequences = len(scores), len(starts)
    gold = torch.stack([starts, ends], 1)
    if may_answer is not None:
        may_answer = F.pad(may_answer, (0, tokens - len(may_answer)))
    if scores.device.type == "cpu":
        _check(gold, cu_seqlens, may_answer)
    values = exact(scores)
    if may_answer is not None:
        values = values.masked_fill(~may_answer[:, None], -torch.inf)
    # Two numbers a token: padding them is cheap, and sums of a fixed order need no atomic adds.
    layout = padded_layout(cu_seqlens, max_seqlen, tokens)
    padded = pad(values, layout).view(layout.batch_size, max_seqlen, 2)
    if layout.key_mask is not None:
        padded = padded.masked_fill(~layout.key_mask.view(-1, max_seqlen, 1), -torch.inf)
    # Cut before the softmax: a sequence in which nothing may answer has none.
    rows = padded[:sequences].transpose(1, 2).reshape(-1, max_seqlen)
    return F.cross_entropy(rows, gold.flatten(), reduction="sum", ignore_index=IGNORED)


def _check(gold: Tensor, cu_seqlens: Tensor, may_answer: Tensor | None) -> None:
    first = cu_seqlens[: len(gold), None].long()
    lengths = cu_seqlens.diff()[: len(gold), None]
    counted = gold.ne(IGNORED)
    outside = counted & ((gold < 0) | (gold >= lengths))
    why = "lies outside of its {length} tokens"
    if may_answer is not None and not bool(outside.any()):
        outside = counted & ~may_answer[torch.where(counted, first + gold, first)]
        why = "may not answer (may_answer is False there)"
    if bool(outside.any()):
        row, side = (int(index) for index in outside.nonzero()[0])
        reason = why.format(length=int(lengths[row]))
        raise ValueError(
            f"sequence {row}: the {('start', 'end')[side]} of its answer, position "
            f"{int(gold[row, side])}, {reason}"
        )
