"""The training loop, visible in one place.

The loss of a step is the sum over all masked positions of the global batch divided by their
number, plus the same over its pairs, whatever rank or micro-batch holds them. What is logged and
saved counts finished steps, from 1.
"""

from __future__ import annotations

import math

import torch

from model.attention import choose_path
from model.bert import BertForPreTraining
from model.losses import nsp_loss_sum
from stages.training import checkpoint, distributed
from stages.training.device import autocast, choose_device, keep_freed_memory, this_machine
from stages.training.evaluate import evaluate
from stages.training.gradients import FlatGradients
from stages.training.job import Hooks, Outcome, TrainJob
from stages.training.loader import Loader
from stages.training.meter import Meter
from stages.training.optimisers import make_optimiser
from stages.training.packing import StepBatch, step_batch
from stages.training.prefetch import prefetched
from stages.training.randomness import seed_dropout
from stages.training.row_groups import Limits
from stages.training.schedules import learning_rate
from stages.training.start import restore
from stages.training.weights import moments_of, weights_of


class NonFiniteError(ArithmeticError):
    """A loss or gradient is NaN or infinite. The model holds the weights from before that step.

    Attributes:
        step: the step, counted from 1.
    """

    def __init__(self, step: int, message: str) -> None:
        super().__init__(message)
        self.step = step


def pretrain(job: TrainJob, hooks: Hooks) -> Outcome:
    """Train up to step `job.train.steps`, from the newest whole checkpoint where there is one.

    Runs on each rank of the default process group, or alone when there is none.

    Raises:
        CheckpointMismatchError: the checkpoint belongs to another configuration.
        DataError: a file does not hold what it should.
        NonFiniteError: a loss or gradient is not finite; no checkpoint holds it.
        ValueError: a device that is not there, rows without what the objective needs, or weights
            that do not fit the model.
    """
    train, rank, world_size = job.train, distributed.rank(), distributed.world_size()
    if job.rounding.threads is not None:
        torch.set_num_threads(job.rounding.threads)
    device = torch.device(choose_device(job.device, this_machine(), job.local_rank))
    if device.type == "cuda":
        torch.cuda.set_device(device)
    if device.type == "cpu":
        keep_freed_memory()

    model = BertForPreTraining(job.model, attention=job.rounding.attention).to(device).train()
    optimiser = make_optimiser(model.parameters(), train)
    rounding = job.rounding_values(device.type, world_size)
    start = restore(job, hooks, model, optimiser, rounding)
    if job.rounding.compile:
        model.compile()

    limits = Limits(job.model.vocab_size, job.model.max_position_embeddings, job.schema_metadata)
    loader = Loader(
        job.filesystem,
        job.copies,
        job.seed,
        train.global_batch_size,
        limits,
        train.bins,
        masks=job.masks,
        mix=job.mix,
    )
    if train.length_bins is not None and rank == 0 and start.step < train.steps:
        hooks.notice(_bins_in_words(loader, start.step, train.length_bins))
    # Summed over ranks with the gradients: MLM loss, NSP loss, whether rank 0 is to stop.
    gradients = FlatGradients(model.parameters(), figures=3)
    meter = Meter()
    attention_is_padded = _attention_is_padded(job, device)
    tokens_seen = start.tokens_seen
    figures = dict(start.figures)
    finished, stopped = start.step, False

    def prepare(step: int) -> StepBatch:
        examples = loader.batch(step)
        budget = job.rounding.micro_batch_tokens
        batch = step_batch(examples, rank, world_size, budget, job.model.nsp)
        return batch.pinned() if device.type == "cuda" else batch

    steps = range(start.step, train.steps)
    with prefetched(prepare, steps, job.prefetch_batches) as batches:
        for step in steps:
            meter.waiting()
            batch = next(batches)
            meter.received(batch)

            seed_dropout(job.seed, step, rank)
            gradients.zero()
            for micro in batch.micro_batches:
                micro = micro.to(device)
                with autocast(device.type, train.precision):
                    output = model(*micro.inputs(), micro.mlm_labels)
                assert output.mlm_loss_sum is not None
                loss = output.mlm_loss_sum / max(1, batch.masked)
                gradients.figures[0] += loss.detach()
                if output.nsp_logits is not None and micro.is_next is not None:
                    nsp_loss = nsp_loss_sum(output.nsp_logits, micro.is_next) / batch.pairs
                    gradients.figures[1] += nsp_loss.detach()
                    loss = loss + nsp_loss
                loss.backward()
            if rank == 0 and hooks.should_stop():
                gradients.figures[2] = 1.0
            gradients.sum_over_ranks()

            # The one place of a step where the CPU waits for the device.
            mlm, nsp, stop, norm = torch.cat([gradients.figures, gradients.norm()[None]]).tolist()
            _check_finite(step + 1, mlm, nsp, norm)
            if train.clip_norm is not None:
                gradients.clip(norm, train.clip_norm)
            rate = learning_rate(
                step, train.steps, train.warmup_steps, train.learning_rate, train.schedule
            )
            for group in optimiser.param_groups:
                group["lr"] = rate
            optimiser.step()

            tokens_seen += batch.tokens
            finished = step + 1
            stopped = bool(stop) and finished < train.steps
            last = stopped or finished == train.steps

            if last or finished % train.log_every_steps == 0:
                figures = {
                    "train/loss": mlm + nsp,
                    "train/mlm_loss": mlm,
                    "train/learning_rate": rate,
                    "train/grad_norm": norm,
                    "train/tokens_seen": tokens_seen,
                    **meter.read(attention_is_padded),
                }
                if job.model.nsp:
                    figures[f"train/{job.pair_name}_loss"] = nsp
                if rank == 0:
                    hooks.log(finished, figures)
            if job.validation is not None and finished % train.evaluate_every_steps == 0:
                held_out = evaluate(
                    model,
                    job.filesystem,
                    job.validation.files,
                    limits,
                    mask_token_id=job.validation.mask_token_id,
                    max_rows=job.validation.max_rows,
                    micro_batch_tokens=job.rounding.micro_batch_tokens,
                    precision=train.precision,
                ).values(job.pair_name)
                if rank == 0:
                    hooks.log(finished, {f"validation/{n}": v for n, v in held_out.items()})
            if last or finished % train.checkpoint_every_steps == 0:
                if rank == 0:
                    epoch, row = loader.position(finished)
                    checkpoint.save(
                        job.checkpoint_filesystem,
                        job.checkpoint_folder,
                        job.attempt,
                        checkpoint.State(
                            step=finished,
                            epoch=epoch,
                            row=row,
                            tokens_seen=tokens_seen,
                            figures=figures,
                            fingerprint=job.fingerprint,
                            vocabulary_digest=job.vocabulary_digest,
                            config=job.described(),
                            rounding=rounding,
                        ),
                        weights_of(model),
                        moments_of(model, optimiser),
                        train.keep_checkpoints,
                    )
                distributed.barrier()
                hooks.saved(finished)
            if stopped:
                break
    return Outcome(stopped, finished, start.step, tokens_seen, figures, model)


def _bins_in_words(loader: Loader, step: int, bins: int) -> str:
    epoch, _ = loader.position(step)
    rows, mixed = loader.rows(epoch), loader.mixed_rows(epoch)
    return (
        f"length bins: {rows - mixed:,} of the {rows:,} rows of epoch {epoch + 1} are in batches "
        f"of one of {bins} bins, the other {mixed:,}, what is left of each bin, in mixed ones"
    )


def _attention_is_padded(job: TrainJob, device: torch.device) -> bool:
    path = choose_path(
        job.rounding.attention,
        device_type=device.type,
        compute_capability=(
            torch.cuda.get_device_capability(device) if device.type == "cuda" else None
        ),
        dtype=torch.bfloat16 if job.train.precision == "bf16" else torch.float32,
        head_size=job.model.head_size,
        dropout=job.model.attention_dropout,
    )
    return path == "sdpa"


def _check_finite(step: int, mlm_loss: float, nsp_loss: float, norm: float) -> None:
    if math.isfinite(mlm_loss + nsp_loss) and math.isfinite(norm):
        return
    raise NonFiniteError(
        step,
        f"step {step}: MLM loss {mlm_loss:g}, pair loss {nsp_loss:g}, gradient norm {norm:g}: not "
        "finite. The step was not applied, and the last checkpoint is from before it. Lower "
        "train.learning_rate, lengthen train.warmup_share, or set train.precision=float32",
    )
