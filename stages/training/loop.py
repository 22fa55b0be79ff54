"""Pretraining: what the steps are made of; `steps` takes them.

The loss of a step is the sum over all masked positions of the global batch divided by their
number, plus the same over its pairs, whatever rank or micro-batch holds them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa
import torch
from torch import Tensor, nn

from model.bert import BertForPreTraining, PretrainingOutput
from model.losses import nsp_loss_sum
from stages.training import distributed
from stages.training.budget import batch_size, course, planned_steps, tokens_in_words
from stages.training.device import Placement, apply, place, this_machine
from stages.training.evaluate import Plateau, evaluate, held_out_in_words
from stages.training.flops import peak_flops
from stages.training.job import Hooks, Outcome, TrainJob, rounding_values
from stages.training.loader import Loader
from stages.training.meter import Meter, attention_is_padded
from stages.training.nonfinite import BadSteps, batch_table
from stages.training.optimisers import make_optimiser
from stages.training.packing import MicroBatch, StepBatch, step_batch
from stages.training.passes import passes_of_step, with_fillers
from stages.training.rehearsal import hours_in_words, rehearse, steps_of_hours, too_short
from stages.training.row_groups import Limits
from stages.training.saving import Saver
from stages.training.shapes import FixedShape, fixed_shape
from stages.training.sharding import check_shardable, gathered, shard
from stages.training.start import drawn_weights, given_start, restore
from stages.training.step import StepLosses, Stepper
from stages.training.steps import Look, Loop, take_steps
from stages.training.weights import moments_of, set_weights, weights_of


class Pretraining:
    """Masked words, and pairs where the rows have them (`step.Objective`)."""

    losses: tuple[str, ...] = ("MLM loss", "pair loss")

    def forward(self, model: nn.Module, micro: MicroBatch) -> PretrainingOutput:
        """Run the encoder and both heads."""
        output: PretrainingOutput = model(*micro.inputs(), micro.mlm_labels)
        return output

    def parts(
        self, output: PretrainingOutput, micro: MicroBatch, batch: StepBatch
    ) -> Sequence[Tensor]:
        """Nats over the masked positions of the global batch, and over its pairs."""
        assert output.mlm_loss_sum is not None
        mlm = output.mlm_loss_sum / max(1, batch.masked)
        if output.nsp_logits is None or micro.is_next is None:
            return (mlm,)
        return mlm, nsp_loss_sum(output.nsp_logits, micro.is_next) / batch.pairs


def pretrain(job: TrainJob, hooks: Hooks) -> Outcome:
    """Train until the budget is spent, from the newest whole checkpoint where there is one.

    Runs on each rank of the default process group, or alone when there is none.

    Raises:
        CheckpointMismatchError: the checkpoint belongs to another configuration.
        CheckpointWriteError: checkpoints cannot be written.
        DataError: a file does not hold what it should.
        NonFiniteError: a loss or gradient is not finite; no checkpoint holds it.
        BudgetError: `train.hours` hold not even one step here.
        ValueError: a device that is not there, rows without what the objective needs, weights
            that do not fit the model, not one budget, or what does not go with sharding.
    """
    if job.rounding.sharding == "full":
        check_shardable(job.train.optimizer, job.rounding.compile)
    train, rank, world_size = job.train, distributed.rank(), distributed.world_size()
    notice = hooks.notice if rank == 0 else _nobody
    if job.rounding.threads is not None:
        torch.set_num_threads(job.rounding.threads)
    placement = place(job.device, train.precision, this_machine(), job.local_rank)
    device = apply(placement)
    for text in placement.notices:
        notice(text)

    model = BertForPreTraining(
        job.model, job.rounding.attention, job.rounding.gradient_checkpointing
    ).train()
    # One rank has nothing to share.
    sharded = job.rounding.sharding == "full" and world_size > 1
    if sharded:
        shard(model, device)
    else:
        model.to(device)
    optimiser = make_optimiser(
        model.parameters(), train, model.bert.encoder.parameters(), placement.fused_optimiser
    )
    rounding = rounding_values(job.rounding, train.precision, device.type, world_size)
    start = restore(
        job,
        hooks,
        model,
        optimiser,
        rounding,
        lambda: given_start(job),
        lambda: drawn_weights(job.model, job.seed),
    )
    limits = Limits(job.model.vocab_size, job.model.max_position_embeddings, job.schema_metadata)
    examples = batch_size(train, job.mean_row_tokens)

    def make_loader(documents: bool) -> Loader:
        return Loader(
            job.filesystem,
            job.copies,
            job.seed,
            examples,
            limits,
            train.bins,
            documents=documents,
            masks=job.masks,
            mix=job.mix,
        )

    loader = make_loader(documents=False)
    shape = None
    if job.rounding.compile:
        model.compile_encoder()
        shape = compiled_shape(job, loader)

    def prepare(step: int) -> StepBatch:
        batch = loader.batch(step)
        budget = job.rounding.micro_batch_tokens
        part = step_batch(batch, rank, world_size, budget, job.model.nsp, shape)
        if sharded:
            passes = passes_of_step(batch.input_ids.lengths, world_size, budget)
            part = with_fillers(part, passes, job.model.nsp)
        return part.pinned() if placement.pinned_copies else part

    def held_out() -> dict[str, float]:
        assert job.validation is not None
        return evaluate(
            model,
            job.filesystem,
            job.validation.files,
            limits,
            mask_token_id=job.validation.mask_token_id,
            label_counts=job.validation.label_counts,
            max_rows=job.validation.max_rows,
            micro_batch_tokens=job.rounding.micro_batch_tokens,
            precision=train.precision,
        ).values(job.pair_name)

    stepper = Stepper(job, model, optimiser, Pretraining(), device, rank)
    planned = planned_steps(train, examples, job.mean_row_tokens)
    if train.hours is not None:
        planned = start.settled.get("steps")
    if planned is None:
        assert train.hours is not None
        watched = held_out if job.validation is not None else None

        def agreed(number: int) -> int:
            return int(distributed.from_rank_0(number, {}, device)[0])

        budget = train.hours * 3600.0
        notice(f"train.hours={train.hours:g}: measuring how long a step takes here")
        pace = rehearse(stepper, prepare, job.prefetch_batches, watched, budget, hooks.should_stop)
        if pace is None:
            here = (start.step, start.step, start.tokens_seen, start.figures)
            return Outcome(True, *here, model, {})
        planned = agreed(steps_of_hours(train.hours, pace, train.evaluate_every_steps))
        if not planned:
            raise too_short(train.hours, pace)
        notice(hours_in_words(train.hours, pace, planned))
    schedule = course(train, planned)
    if rank == 0:
        hooks.planned(schedule.steps, start.step)
    if job.mean_row_tokens is not None and (train.tokens or train.global_batch_tokens):
        notice(tokens_in_words(train, examples, schedule.steps, job.mean_row_tokens))
    if train.length_bins is not None and start.step < schedule.steps:
        notice(_bins_in_words(loader, start.step, train.length_bins))

    def batch_with_documents(step: int) -> pa.Table:
        return batch_table(make_loader(documents=True).batch(step))

    lost = start.settled.get("skipped_steps", 0)
    plateau = Plateau(schedule.warmup_steps)

    def look(step: int) -> Look | None:
        # After the last step too: it may be the best, and it is what the run came to.
        due = step % train.evaluate_every_steps == 0 or step == schedule.steps
        if job.validation is None or not due:
            return None
        values = held_out()
        notice(held_out_in_words(step, values, job.pair_name))
        warning = plateau.message(step, values)
        if warning is not None:
            notice(warning)
        named = {f"validation/{name}": value for name, value in values.items()}
        return Look(named, values.get("mlm_loss"))

    def described(losses: StepLosses) -> dict[str, float]:
        mlm, pair = losses.parts
        own = {f"train/{job.pair_name}_loss": pair} if job.model.nsp else {}
        return {"train/mlm_loss": mlm, **own}

    loop = Loop(
        job=job,
        hooks=hooks,
        device=device,
        rank=rank,
        schedule=schedule,
        stepper=stepper,
        saver=Saver(job, hooks, model, optimiser, rounding),
        meter=Meter(
            job.model,
            _peak(placement, job, world_size),
            attention_is_padded(job.rounding, train.precision, job.model, device),
        ),
        bad=BadSteps(job, Pretraining.losses, batch_with_documents, rank, lost, notice),
        prepare=prepare,
        prefetch=job.prefetch_batches,
        position=loader.position,
        look=look,
        described=described,
        settled=lambda: {"steps": schedule.steps},
    )
    # What was settled by a rehearsal holds from now on.
    reached = take_steps(loop, start, train.hours is not None and "steps" not in start.settled)
    moments = moments_of(model, optimiser)
    # Of a stopped run the checkpoint is what counts, and rank 0 may have failed to write it.
    if sharded and not reached.stopped:
        model, moments = _whole(model, moments)
    return Outcome(
        reached.stopped,
        reached.step,
        start.step,
        reached.tokens_seen,
        reached.figures,
        model,
        moments,
    )


def compiled_shape(job: TrainJob, loader: Loader) -> FixedShape:
    """The shape of all micro-batches of a compiled run."""
    # Padded attention is as wide as this: in a phase of 128 not the 512 of the positions.
    longest = job.max_row_tokens or job.model.max_position_embeddings
    # A batch of one bin says nothing of the others.
    mean = job.mean_row_tokens or float(loader.batch(0).input_ids.lengths.mean())
    # No micro-batch holds more than a step's rows, however large the budget.
    most = batch_size(job.train, job.mean_row_tokens) * longest
    return fixed_shape(min(job.rounding.micro_batch_tokens, most), longest, mean)


def _whole(
    model: BertForPreTraining, moments: Mapping[str, Tensor]
) -> tuple[BertForPreTraining, dict[str, Tensor]]:
    """On rank 0 model and moments brought together on CPU; called on every rank."""
    first = distributed.rank() == 0
    parts = [
        {name: tensor.cpu() for name, tensor in gathered(tensors) if first}
        for tensors in (weights_of(model), moments)
    ]
    if not first:
        return model, {}
    whole = BertForPreTraining(model.config).train()
    set_weights(whole, parts[0], "the shards")
    return whole, parts[1]


def _nobody(text: str) -> None:
    """Notices are for rank 0."""


def _bins_in_words(loader: Loader, step: int, bins: int) -> str:
    epoch, _ = loader.position(step)
    rows, mixed = loader.rows(epoch), loader.mixed_rows(epoch)
    return (
        f"length bins: {rows - mixed:,} of the {rows:,} rows of epoch {epoch + 1} are in batches "
        f"of one of {bins} bins, the other {mixed:,}, what is left of each bin, in mixed ones"
    )


def _peak(placement: Placement, job: TrainJob, devices: int) -> float | None:
    precision = job.train.precision
    computed = "float32" if precision == "tf32" and not placement.tf32 else precision
    peak = peak_flops(placement.name, computed)
    return None if peak is None else devices * peak
