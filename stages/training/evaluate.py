"""Held-out figures in fixed order without dropout, and the unigram baseline on the same labels."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from pyarrow.fs import FileSystem

from model.bert import BertForPreTraining
from model.heads import IS_NEXT, NOT_NEXT
from stages.training import distributed
from stages.training.device import Precision, autocast
from stages.training.examples import Examples
from stages.training.packing import MicroBatch, micro_batches
from stages.training.passes import filler, most_passes
from stages.training.row_groups import Limits, RowGroups, ShardFile
from stages.training.sharding import is_sharded, release

PLATEAU_NATS = 0.05
"""So little under the unigram baseline is no learning of context."""
PLATEAU_EVERY = 5
"""Evaluations on the plateau from one warning to the next."""

_CHUNK_ROWS = 512


@dataclass(frozen=True)
class LabelFigures:
    """Prediction of some labels.

    Attributes:
        count: labels.
        loss_sum: of -ln P(label), in nats.
        correct: labels that the model ranks first.
        unigram_loss_sum: as loss_sum, for the add-one frequencies of the training labels; NaN
            without counts.
        unigram_correct: labels equal to the most frequent one; 0 without counts.
    """

    count: int
    loss_sum: float
    correct: int
    unigram_loss_sum: float
    unigram_correct: int

    @property
    def loss(self) -> float:
        """Nats a label; NaN without labels."""
        return self.loss_sum / self.count if self.count else math.nan

    @property
    def accuracy(self) -> float:
        """Share of labels ranked first; NaN without labels."""
        return self.correct / self.count if self.count else math.nan

    @property
    def unigram_loss(self) -> float:
        """Nats a label for the unigram baseline."""
        return self.unigram_loss_sum / self.count if self.count else math.nan

    @property
    def unigram_accuracy(self) -> float:
        """Share of labels that are the most frequent one."""
        return self.unigram_correct / self.count if self.count else math.nan


@dataclass(frozen=True)
class NextSentenceFigures:
    """Prediction of IsNext and NotNext, or of in order and swapped.

    Attributes:
        pairs: rows.
        is_next: rows that are IsNext.
        correct: rows classified rightly.
        loss_sum: in nats.
    """

    pairs: int
    is_next: int
    correct: int
    loss_sum: float

    @property
    def loss(self) -> float:
        """Nats a pair."""
        return self.loss_sum / self.pairs if self.pairs else math.nan

    @property
    def accuracy(self) -> float:
        """Share classified rightly."""
        return self.correct / self.pairs if self.pairs else math.nan

    @property
    def majority_share(self) -> float:
        """Accuracy of always naming the more frequent class."""
        return max(self.is_next, self.pairs - self.is_next) / self.pairs if self.pairs else math.nan


@dataclass(frozen=True)
class Figures:
    """Held-out figures.

    Attributes:
        rows: evaluated.
        tokens: of these rows.
        all_labels: over every masked position, kept and random tokens included.
        mask_tokens: over positions that show `[MASK]` alone: nothing there gives the label away.
        nsp: None for a model without the objective.
        by_document: float64 [D, 3], for each document of the rows the labels that show `[MASK]`,
            and the sums of the model's and the baseline's losses on them; None unless asked for.
    """

    rows: int
    tokens: int
    all_labels: LabelFigures
    mask_tokens: LabelFigures
    nsp: NextSentenceFigures | None
    by_document: NDArray[np.float64] | None = None

    def values(self, pair_name: str = "nsp") -> dict[str, float]:
        """Flat figures by name, without those that are not finite.

        Args:
            pair_name: with which the names of the figures of pairs begin.
        """
        named = {
            "mlm_loss": self.all_labels.loss,
            "mlm_perplexity": _exp(self.all_labels.loss),
            "mlm_accuracy": self.all_labels.accuracy,
            "mlm_loss_mask_tokens": self.mask_tokens.loss,
            "mlm_accuracy_mask_tokens": self.mask_tokens.accuracy,
            "unigram_loss": self.all_labels.unigram_loss,
            "unigram_loss_mask_tokens": self.mask_tokens.unigram_loss,
        }
        if self.nsp is not None:
            named[f"{pair_name}_loss"] = self.nsp.loss
            named[f"{pair_name}_accuracy"] = self.nsp.accuracy
        return {name: value for name, value in named.items() if math.isfinite(value)}


def _exp(nats: float) -> float:
    # A diverged loss can be beyond what the exponential of a double holds.
    return math.exp(nats) if nats < 700 else math.inf


def held_out_in_words(step: int, values: Mapping[str, float], pair_name: str) -> str:
    """One line of the log.

    Args:
        step: finished steps.
        values: of `Figures.values`.
        pair_name: as given to it.
    """
    said = [f"step {step:,}, held out"]
    if "mlm_loss_mask_tokens" in values:
        loss = f"loss on [MASK] {values['mlm_loss_mask_tokens']:.3f} nats"
        if "unigram_loss_mask_tokens" in values:
            loss += f" (unigram baseline {values['unigram_loss_mask_tokens']:.3f})"
        said.append(loss)
    for name, label in (("mlm_perplexity", "perplexity"), ("mlm_loss", "MLM loss")):
        if name in values:
            said.append(f"{label} {values[name]:.4g}")
    accuracies = (
        ("mlm_accuracy", "MLM"),
        (f"{pair_name}_accuracy", _PAIR_WORDS.get(pair_name, pair_name)),
    )
    for name, label in accuracies:
        if name in values:
            said.append(f"{label} accuracy {100 * values[name]:.1f} %")
    return f"{said[0]}: {', '.join(said[1:]) or 'no labels'}"


_PAIR_WORDS = {"nsp": "NSP", "sentence_order": "sentence order"}


class Plateau:
    """Tells of a model that has learned how often tokens come, and nothing of their context.

    Args:
        warmup_steps: before the end of warm-up nothing else is expected.
    """

    def __init__(self, warmup_steps: int) -> None:
        self._warmup_steps = warmup_steps
        self._met = 0

    def message(self, step: int, values: Mapping[str, float]) -> str | None:
        """A warning at the 1st, 6th, 11th... evaluation in a row on the plateau, else None.

        Args:
            step: finished steps.
            values: of `Figures.values`.
        """
        loss = values.get("mlm_loss_mask_tokens")
        unigram = values.get("unigram_loss_mask_tokens")
        if loss is None or unigram is None or step < self._warmup_steps:
            return None
        if loss < unigram - PLATEAU_NATS:
            self._met = 0
            return None
        self._met += 1
        if self._met % PLATEAU_EVERY != 1:
            return None
        return (
            f"step {step:,}: the held-out loss on [MASK] positions is {loss:.2f} nats, the unigram "
            f"baseline {unigram:.2f}: the model knows how often tokens come, and nothing of their "
            "context yet. Many runs leave this plateau by themselves, later with few layers or "
            "large batches. If it stays: lower train.learning_rate (4 layers x 256 stayed "
            "there with AdamW at 1e-3 and left it at 4e-4), try train=laptop or "
            "train.optimizer=muon, raise train.steps or lower train.global_batch_size"
        )


def unigram_log_probabilities(counts: NDArray[Any]) -> NDArray[np.float64]:
    """[V] natural logs of add-one frequencies: (count + 1) / (total + V)."""
    smoothed = counts.astype(np.float64) + 1.0
    logs: NDArray[np.float64] = np.log(smoothed / smoothed.sum())
    return logs


@torch.no_grad()
def evaluate(
    model: BertForPreTraining,
    filesystem: FileSystem,
    files: Sequence[ShardFile],
    limits: Limits,
    *,
    mask_token_id: int,
    label_counts: NDArray[Any] | None = None,
    max_rows: int | None = None,
    micro_batch_tokens: int = 8192,
    precision: Precision = "float32",
    documents: bool = False,
) -> Figures:
    """Figures of a model over the first rows of some files.

    Under an initialised process group each rank evaluates its share, and all get the whole
    figures. The model's training mode is as before afterwards.

    Args:
        model: on the device to use.
        filesystem: where the paths lead.
        files: held-out files of a mask artifact, read in this order.
        limits: checked on each row group.
        mask_token_id: id of `[MASK]`.
        label_counts: [V] how often each id is a training label (`count_labels`), for the
            unigram baseline; None leaves it out.
        max_rows: read so many rows at most; None for all.
        micro_batch_tokens: token budget of a forward pass.
        precision: of matrix products.
        documents: whether to make `Figures.by_document`, of this rank's rows.

    Raises:
        DataError: a file does not hold what it should.
        ValueError: the model has the NSP objective, and the files hold no `is_next`.
    """
    parameter = next(model.parameters())
    device = parameter.device
    nsp = model.config.nsp
    baseline = None if label_counts is None else unigram_log_probabilities(label_counts)
    totals = np.zeros(16)
    by_document: dict[Any, NDArray[np.float64]] | None = {} if documents else None
    was_training = model.training
    model.eval()
    try:
        for turn in _turns(
            _chunks(filesystem, files, limits, max_rows, documents), distributed.world_size()
        ):
            made: tuple[MicroBatch, ...] = ()
            if distributed.rank() < len(turn):
                examples = turn[distributed.rank()]
                longest_first = np.argsort(-examples.input_ids.lengths, kind="stable")
                examples = examples.take(longest_first)
                totals[:2] += len(examples), examples.tokens
                made = micro_batches(examples, micro_batch_tokens, nsp)
            if is_sharded(model):
                shares = (-np.sort(-chunk.input_ids.lengths) for chunk in turn)
                nothing = filler(nsp).to(device)
                for _ in range(most_passes(shares, micro_batch_tokens) - len(made)):
                    with autocast(device.type, precision):
                        model(*nothing.inputs())
            first_row = 0
            for micro in made:
                batch = micro.to(device)
                with autocast(device.type, precision):
                    output = model(*batch.inputs())
                losses, correct = _losses(output.mlm_logits, batch.mlm_labels)
                labels = micro.mlm_labels.numpy()
                shows_mask = (micro.input_ids[micro.mlm_positions] == mask_token_id).numpy()
                totals[2:7] += _label_sums(labels, losses, correct, baseline)
                totals[7:12] += _label_sums(
                    labels[shows_mask], losses[shows_mask], correct[shows_mask], baseline
                )
                if by_document is not None and examples.documents is not None:
                    ends = micro.cu_seqlens.numpy()[1:]
                    rows = np.searchsorted(ends, micro.mlm_positions.numpy(), side="right")
                    asked = first_row + rows[shows_mask]
                    unigram = np.zeros(0) if baseline is None else -baseline[labels[shows_mask]]
                    _add_by_document(
                        by_document, examples.documents[asked], losses[shows_mask], unigram
                    )
                    first_row += len(ends)
                if output.nsp_logits is not None and batch.is_next is not None:
                    classes = torch.where(batch.is_next, IS_NEXT, NOT_NEXT)
                    losses, correct = _losses(output.nsp_logits, classes)
                    is_next = int(batch.is_next.sum())
                    totals[12:16] += len(losses), is_next, correct.sum(), losses.sum()
    finally:
        model.train(was_training)
        if is_sharded(model):
            release(model)
    # NCCL sums tensors on GPUs only; Apple's GPUs have no float64, and no group either.
    summed = torch.from_numpy(totals).to(device if device.type == "cuda" else "cpu")
    distributed.sum_over_ranks(summed)
    figures = _figures(summed.cpu().numpy(), nsp, baseline is not None)
    if by_document is None:
        return figures
    return replace(figures, by_document=np.array([*by_document.values()]).reshape(-1, 3))


def _add_by_document(
    sums: dict[Any, NDArray[np.float64]],
    documents: NDArray[Any],
    losses: NDArray[np.float64],
    unigram: NDArray[np.float64],
) -> None:
    names, groups = np.unique(documents, return_inverse=True)
    parts = [np.bincount(groups, minlength=len(names)), np.bincount(groups, losses, len(names))]
    parts.append(np.bincount(groups, unigram, len(names)) if len(unigram) else 0 * parts[1])
    for name, values in zip(names, np.stack(parts, 1), strict=True):
        sums[name] = sums.get(name, 0.0) + values


def _chunks(
    filesystem: FileSystem,
    files: Sequence[ShardFile],
    limits: Limits,
    max_rows: int | None,
    documents: bool,
) -> Iterator[Examples]:
    groups = RowGroups(filesystem, files, limits, keep=1, documents=documents)
    left = int(groups.sizes.sum()) if max_rows is None else max_rows
    for number in range(len(groups)):
        size = min(int(groups.sizes[number]), left)
        left -= size
        for start in range(0, size, _CHUNK_ROWS):
            rows = np.arange(start, min(start + _CHUNK_ROWS, size))
            yield groups.get(number).take(rows)
        if left == 0:
            return


def _turns(chunks: Iterable[Examples], ranks: int) -> Iterator[list[Examples]]:
    """Chunks for each rank, turn by turn; in the last turn some ranks may get none."""
    turn: list[Examples] = []
    for chunk in chunks:
        turn.append(chunk)
        if len(turn) == ranks:
            yield turn
            turn = []
    if turn:
        yield turn


def _losses(
    logits: torch.Tensor, labels: torch.Tensor
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    losses = F.cross_entropy(logits.float(), labels, reduction="none")
    correct = logits.argmax(-1) == labels
    return losses.cpu().numpy().astype(np.float64), correct.cpu().numpy()


def _label_sums(
    labels: NDArray[Any],
    losses: NDArray[np.float64],
    correct: NDArray[np.bool_],
    baseline: NDArray[np.float64] | None,
) -> tuple[float, ...]:
    unigram = (0.0, 0.0)
    if baseline is not None:
        unigram = (-float(baseline[labels].sum()), float((labels == baseline.argmax()).sum()))
    return (len(labels), float(losses.sum()), float(correct.sum()), *unigram)


def _figures(totals: NDArray[np.float64], nsp: bool, baseline: bool) -> Figures:
    def labels(part: NDArray[np.float64]) -> LabelFigures:
        return LabelFigures(
            count=int(part[0]),
            loss_sum=float(part[1]),
            correct=int(part[2]),
            unigram_loss_sum=float(part[3]) if baseline else math.nan,
            unigram_correct=int(part[4]),
        )

    pairs = NextSentenceFigures(
        pairs=int(totals[12]),
        is_next=int(totals[13]),
        correct=int(totals[14]),
        loss_sum=float(totals[15]),
    )
    return Figures(
        rows=int(totals[0]),
        tokens=int(totals[1]),
        all_labels=labels(totals[2:7]),
        mask_tokens=labels(totals[7:12]),
        nsp=pairs if nsp else None,
    )
