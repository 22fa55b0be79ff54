"""What each Ray Train worker of the stage pretrain runs: a job for `stages.training`, and its words
to the driver."""

from __future__ import annotations

import dataclasses
import json
import math
import secrets
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from model.config import BertConfig
from pipeline.channel import Sender
from pipeline.digest import tensors_digest
from pipeline.store import Artifact, ArtifactWriter
from stages.config import ModelConfig, RoundingConfig
from stages.tables import PAIR_NAMES, shard_files
from stages.text.tokenizer_files import tokenizer_files, vocabulary_digest
from stages.text.wordpiece import Tokenizer
from stages.training_rows import drawn_masks, indexed_copies, label_counts
from stages.training_worker import DriverHooks, as_worker
from stages.vocabulary_files import DIGEST_KEY, load_tokenizer

if TYPE_CHECKING:
    from torch import Tensor

    from stages.training.job import Outcome, TrainJob

WEIGHTS = "weights.safetensors"
MODEL = "model.json"
OPTIMISER = "optimiser.safetensors"
"""The moments after the last step. Part of the output digest: they decide the next phase."""

BEST = "best"
"""Folder of the best checkpoint's weights, where the last are not the best."""

CURVE_ROWS = 2000
"""Held-out rows of the figures during training; `evaluate` takes all."""


@dataclasses.dataclass(frozen=True)
class Plan:
    """What a worker needs; pickled to each.

    Attributes:
        initial: path of the weights that `train.init_from` gave, in the store; None without.
    """

    config: Mapping[str, Any]
    settings: Mapping[str, Any]
    rows: Artifact
    mixed: tuple[Artifact, ...]
    heldout: Artifact
    vocab: Artifact
    before: Artifact | None
    initial: str | None
    output: ArtifactWriter
    fingerprint: str
    attempt: str
    threads: int
    use_gpu: bool


def model_config(config: Mapping[str, Any], vocab: Sequence[str]) -> BertConfig:
    """The model's shape from the node's config and the vocabulary."""
    shape = ModelConfig.model_validate(config["model"])
    return BertConfig(
        vocab_size=len(vocab),
        pad_token_id=vocab.index("[PAD]"),
        nsp=config["objective"]["nsp"],
        **shape.model_dump(),
    )


def seed_of(config: Mapping[str, Any]) -> int:
    """The seed of a phase: of its weights, order and dropout."""
    seed: int = config["seeds"]["train"] + config["phase"]
    return seed


def mean_row_tokens(rows: Artifact) -> float:
    """Mean tokens of the training rows of an artifact."""
    parts = [part for name, part in rows.files().items() if name.startswith("train-")]
    tokens = sum(int(part.figures["tokens"]) for part in parts)
    return tokens / max(1, sum(part.rows or 0 for part in parts))


def mean_mixed_tokens(plan: Plan) -> float:
    """Mean tokens of a row of all sources, each with its share."""
    shares = list(plan.config.get("mix", ()))
    shares.insert(0, 1.0 - math.fsum(shares))
    means = [mean_row_tokens(rows) for rows in (plan.rows, *plan.mixed)]
    return math.fsum(share * mean for share, mean in zip(shares, means, strict=True))


def train_worker(config: dict[str, Any]) -> dict[str, Any] | None:
    """What each Ray Train worker runs."""
    return as_worker(config, train_here)


def train_here(plan: Plan, sender: Sender, rank: int, local_rank: int) -> dict[str, Any]:
    """Train in this process as rank `rank`; rank 0 of a run that ends writes the artifact.

    Returns:
        Whether it was stopped, and the last step.
    """
    from stages.training.job import Rounding, TrainConfig, TrainJob, Validation
    from stages.training.loader import MixedSource
    from stages.training.loop import pretrain
    from stages.training.row_groups import Limits, read_index

    tokenizer = load_tokenizer(plan.vocab)
    digest = vocabulary_digest(tokenizer)
    rounding = RoundingConfig.model_validate(plan.settings["rounding"])
    given = {**plan.config["train"], **plan.settings["train"]}
    # Where it starts from is the job's, not the mathematics'.
    init_from, init_moments = _start(plan, given.pop("carry_moments", False))
    given.pop("init_from", None)
    train = TrainConfig(**given)
    weights = plan.config.get("mix", ())
    model = model_config(plan.config, tokenizer.vocab)
    metadata = ((DIGEST_KEY.decode(), digest),)
    masks = drawn_masks(plan.config, tokenizer)
    limits = Limits(model.vocab_size, model.max_position_embeddings, metadata)
    heldout = [f"{plan.heldout.data}/{n}" for n in shard_files(plan.heldout, "validation")]
    job = TrainJob(
        model=model,
        train=train,
        rounding=Rounding(
            micro_batch_tokens=rounding.micro_batch_tokens,
            threads=rounding.threads or plan.threads,
            attention=rounding.attention,
            compile=rounding.compile,
            gradient_checkpointing=rounding.gradient_checkpointing,
            sharding=rounding.sharding,
        ),
        seed=seed_of(plan.config),
        filesystem=plan.rows.fs,
        copies=indexed_copies(plan.rows),
        masks=masks,
        mix=tuple(
            MixedSource(other.fs, indexed_copies(other), weight)
            for other, weight in zip(plan.mixed, weights, strict=True)
        ),
        checkpoint_filesystem=plan.output.fs,
        checkpoint_folder=f"{plan.output.work}/checkpoints",
        fingerprint=plan.fingerprint,
        # Ray starts workers again within an attempt, and a lost one may still be writing.
        attempt=f"{plan.attempt}-{secrets.token_hex(4)}",
        vocabulary_digest=digest,
        schema_metadata=metadata,
        config={
            name: plan.config[name]
            for name in ("phase", "objective", "mask", "mix")
            if name in plan.config
        },
        init_from=init_from,
        init_moments=init_moments,
        device="cuda" if plan.use_gpu else "cpu",
        local_rank=local_rank,
        prefetch_batches=plan.settings["speed"]["prefetch_batches"],
        validation=Validation(
            files=read_index(plan.heldout.fs, heldout),
            mask_token_id=tokenizer.vocab.index("[MASK]"),
            max_rows=min(CURVE_ROWS, plan.settings["evaluate"]["max_rows"]),
            label_counts=label_counts(plan.rows, len(tokenizer.vocab), masks, limits),
        ),
        pair_name=PAIR_NAMES[plan.config["objective"]["pair"]],
        mean_row_tokens=mean_mixed_tokens(plan),
        max_row_tokens=plan.settings["max_seq_length"],
        nonfinite_folder=f"{plan.output.work}/nonfinite",
    )
    hooks = DriverHooks(sender)
    outcome = pretrain(job, hooks)
    if rank == 0 and not outcome.stopped:
        figures = {
            "steps": outcome.step,
            "tokens_seen": outcome.tokens_seen,
            **{k: v for k, v in outcome.figures.items() if math.isfinite(v)},
            "parameters": sum(p.numel() for p in outcome.model.parameters()),
            "resumed_from": outcome.resumed_from,
            **_of_all_phases(plan.before, outcome),
        }
        _write_best(plan.output, job, tokenizer, outcome.step, figures)
        _write(plan.output, outcome, job.model, tokenizer, figures)
    return {"stopped": outcome.stopped, "step": outcome.step}


def _start(plan: Plan, carry_moments: bool) -> tuple[str | None, str | None]:
    """Paths of the weights and of the moments that the run begins with."""
    if plan.before is None:
        return plan.initial, None
    moments = f"{plan.before.data}/{OPTIMISER}" if carry_moments else None
    return f"{plan.before.data}/{WEIGHTS}", moments


def _of_all_phases(before: Artifact | None, outcome: Outcome) -> dict[str, int]:
    if before is None:
        return {}
    figures = before.figures
    return {
        f"{name}_of_all_phases": here + figures.get(f"{name}_of_all_phases", figures[name])
        for name, here in (("steps", outcome.step), ("tokens_seen", outcome.tokens_seen))
    }


def _write(
    output: ArtifactWriter,
    outcome: Outcome,
    config: BertConfig,
    tokenizer: Tokenizer,
    figures: dict[str, Any],
) -> None:
    from stages.training.weights import weights_of

    output.write_bytes(MODEL, _model_json(config))
    # Beside the weights, so that a run can start from this folder alone; what it holds is the
    # vocabulary's, which counts as an input.
    for name, data in tokenizer_files(tokenizer, config.max_position_embeddings).items():
        output.write_bytes(name, data, content=False)
    _write_tensors(output, OPTIMISER, outcome.moments, {})
    _write_tensors(output, WEIGHTS, weights_of(outcome.model), figures)


def _write_best(
    output: ArtifactWriter,
    job: TrainJob,
    tokenizer: Tokenizer,
    last: int,
    figures: dict[str, Any],
) -> None:
    """Keep the best checkpoint's weights as a folder of their own, where the last are not the best.

    Side files: what follows reads the last weights, as BERT was trained; `train.init_from` takes
    this folder.
    """
    from stages.training.checkpoint import best_checkpoint
    from stages.training.tensor_files import write_tensors

    if not job.train.keep_best:
        return
    best = best_checkpoint(job.checkpoint_filesystem, job.checkpoint_folder)
    if best is None or best.state.step == last:
        return
    figures |= {"best/step": best.state.step, "best/mlm_loss": best.state.score}
    output.write_bytes(f"{BEST}/{MODEL}", _model_json(job.model), content=False)
    for name, data in tokenizer_files(tokenizer, job.model.max_position_embeddings).items():
        output.write_bytes(f"{BEST}/{name}", data, content=False)
    with output.part(f"{BEST}/{WEIGHTS}", content=False) as part:
        write_tensors(part.stream, best.weights)
        part.finish(rows=len(best.weights))


def _model_json(config: BertConfig) -> bytes:
    return json.dumps(dataclasses.asdict(config), indent=1).encode()


def _write_tensors(
    output: ArtifactWriter, name: str, tensors: Mapping[str, Tensor], figures: dict[str, Any]
) -> None:
    from stages.training.tensor_files import bytes_of, write_tensors

    digest = tensors_digest({n: (str(t.dtype), t.shape, bytes_of(t)) for n, t in tensors.items()})
    with output.part(name) as part:
        write_tensors(part.stream, tensors)
        part.finish(digest=digest, rows=len(tensors), figures=figures)
