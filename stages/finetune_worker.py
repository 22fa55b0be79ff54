"""What each Ray Train worker of the stage finetune runs: one run a seed, then the model's files."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import secrets
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from model.config import BertConfig
from pipeline.channel import Sender
from pipeline.digest import tensors_digest
from pipeline.store import Artifact, ArtifactWriter
from stages.config import RoundingConfig
from stages.metrics.report import tables_json
from stages.task_scoring import Scorer
from stages.text.tokenizer_files import vocabulary_digest
from stages.training_worker import DriverHooks, as_worker
from stages.vocabulary_files import load_tokenizer

if TYPE_CHECKING:
    import torch

    from model.task_heads import BertForTask
    from stages.training.finetuning import TaskJob, TaskOutcome
    from stages.training.task_examples import TaskExamples

FIGURES = "figures.json"
PREDICTIONS = "dev-predictions.jsonl"
PAGE = "mistakes.html"
TABLES = "tables.json"
WEIGHTS = "model.safetensors"
ONNX_ROWS = 200
"""Rows of dev among which the ones are that the ONNX file is checked on."""

OPTIMISATION = (
    "global_batch_size", "learning_rate", "warmup_share", "schedule", "optimizer", "weight_decay",
    "beta1", "beta2", "epsilon", "clip_norm", "precision",
)  # fmt: skip
"""Keys of the node's config that are of `TrainConfig`."""
FREQUENCIES = ("checkpoint_every_steps", "log_every_steps", "keep_checkpoints")


@dataclasses.dataclass(frozen=True)
class Plan:
    """What a worker needs; pickled to each.

    Attributes:
        model: the encoder's shape, with the dropout of the task.
        initial: path of the weights that it starts from, in the store.
    """

    name: str
    config: Mapping[str, Any]
    settings: Mapping[str, Any]
    task: Artifact
    model: BertConfig
    initial: str
    output: ArtifactWriter
    fingerprint: str
    attempt: str
    threads: int
    use_gpu: bool


def task_description(task: Artifact) -> dict[str, Any]:
    """What the stage task wrote of a task."""
    described: dict[str, Any] = json.loads(task.read_bytes("task.json"))
    return described


def classes_of(described: Mapping[str, Any]) -> int:
    """K of the task's head."""
    fixed = {"regression": 1, "answers": 2}
    return fixed.get(described["objective"]) or len(described["classes"])


def seed_of(config: Mapping[str, Any], number: int) -> int:
    """The seed of run `number`, counted from 1; 63 bits."""
    digest = hashlib.sha256(f"{config['seeds']['finetune']}/{number}".encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1


def finetune_worker(config: dict[str, Any]) -> dict[str, Any] | None:
    """What each Ray Train worker runs."""
    return as_worker(config, finetune_here)


def finetune_here(plan: Plan, sender: Sender, rank: int, local_rank: int) -> dict[str, Any]:
    """Run the seeds that are not done yet; rank 0 writes the artifact after the last.

    Returns:
        Whether it was stopped, and how many steps are finished over all seeds.
    """
    import torch

    from stages.training import distributed
    from stages.training.finetuning import finetune

    scorer = Scorer.open(plan.task)
    seeds = int(plan.config["train"]["seeds"])
    device = torch.device("cuda" if plan.use_gpu else "cpu")
    # Asked once, by rank 0: the others must not see it finish one in between.
    done = sorted(_finished_seeds(plan.output)) if rank == 0 else []
    done, _ = distributed.from_rank_0(done, {}, device)
    examples, watched = _examples(plan, "train"), _examples(plan, "dev")
    steps = 0
    for number in range(1, seeds + 1):
        job = _job(plan, scorer, number, examples, watched, local_rank)
        if number in done:
            steps += job.train.steps or 0
            continue
        prefix = f"seed_{number}/" if seeds > 1 else ""
        outcome = finetune(job, DriverHooks(sender, prefix))
        if outcome.stopped:
            return {"stopped": True, "step": steps + outcome.step}
        steps += job.train.steps or 0
        _by_rank_0(partial(_keep, plan, scorer, number, job, outcome), rank, device)
    if rank == 0:
        _write(plan, scorer, seeds, watched)
    return {"stopped": False, "step": steps}


def _by_rank_0(work: Callable[[], None], rank: int, device: torch.device) -> None:
    """Have rank 0 do it; when it cannot write, the others do not wait for it at the next step.

    Raises:
        OSError: on rank 0, of `work`.
        CheckpointWriteError: on the others, in that case.
    """
    from stages.training import distributed
    from stages.training.saving import CheckpointWriteError

    problem: OSError | None = None
    if rank == 0:
        try:
            work()
        except OSError as error:
            problem = error
    failed, _ = distributed.from_rank_0(problem is not None, {}, device)
    if problem is not None:
        raise problem
    if failed:
        raise CheckpointWriteError("rank 0 could not write the weights of a seed")


def _examples(plan: Plan, which: str) -> TaskExamples:
    from stages.training.task_examples import read_task_examples

    return read_task_examples(
        plan.task.fs,
        f"{plan.task.data}/{which}.parquet",
        task_description(plan.task)["kind"],
        plan.model.vocab_size,
        plan.model.max_position_embeddings,
    )


def _job(
    plan: Plan,
    scorer: Scorer,
    number: int,
    examples: TaskExamples,
    watched: TaskExamples,
    local_rank: int,
) -> TaskJob:
    from stages.training.finetuning import TaskJob, Watched
    from stages.training.job import Rounding, TrainConfig

    given, settings = plan.config["train"], plan.settings["train"]
    described = task_description(plan.task)
    rounding = RoundingConfig.model_validate(plan.settings["rounding"])
    batches = -(-len(examples) // given["global_batch_size"])
    train = TrainConfig(
        steps=given["epochs"] * batches,
        keep_best=given["keep"] == "best",
        **{key: given[key] for key in OPTIMISATION},
        **{key: settings[key] for key in FREQUENCIES},
    )
    return TaskJob(
        model=plan.model,
        kind=described["kind"],
        classes=classes_of(described),
        train=train,
        rounding=Rounding(
            micro_batch_tokens=rounding.micro_batch_tokens,
            threads=rounding.threads or plan.threads,
            attention=rounding.attention,
            gradient_checkpointing=rounding.gradient_checkpointing,
        ),
        seed=seed_of(plan.config, number),
        examples=examples,
        watched=Watched(
            watched,
            lambda outputs: scorer.figures(outputs).values,
            scorer.metric,
            scorer.higher_is_better,
            given["evaluate_every_steps"],
            given["patience"],
            given["keep"] == "best",
        ),
        filesystem=plan.output.fs,
        init_from=plan.initial,
        checkpoint_filesystem=plan.output.fs,
        checkpoint_folder=f"{plan.output.work}/checkpoints/{number}",
        fingerprint=plan.fingerprint,
        # Ray starts workers again within an attempt, and a lost one may still be writing.
        attempt=f"{plan.attempt}-{secrets.token_hex(4)}",
        layer_decay=given["layer_decay"],
        freeze_embeddings=given["freeze_embeddings"] or given["freeze_layers"] > 0,
        freeze_layers=given["freeze_layers"],
        freeze_encoder=given["freeze_encoder"],
        head_dropout=given["head_dropout"],
        vocabulary_digest=vocabulary_digest(load_tokenizer(plan.task)),
        config={"keep": given["keep"], "patience": given["patience"]},
        device="cuda" if plan.use_gpu else "cpu",
        local_rank=local_rank,
        prefetch_batches=plan.settings["speed"]["prefetch_batches"],
        nonfinite_folder=f"{plan.output.work}/nonfinite/{number}",
    )


def _finished_seeds(output: ArtifactWriter) -> dict[int, dict[str, Any]]:
    """Figures of each seed that is done."""
    found = {}
    for name, part in output.finished().items():
        if name.startswith("seeds/"):
            found[int(part.figures["seed"])] = dict(part.figures)
    return found


def _keep(plan: Plan, scorer: Scorer, number: int, job: TaskJob, outcome: TaskOutcome) -> None:
    """Put a seed's weights aside, then say that it is done."""
    from stages.training.task_outputs import task_outputs
    from stages.training.tensor_files import write_tensors
    from stages.training.weights import weights_of

    assert job.watched is not None
    outputs = task_outputs(
        outcome.model,
        job.watched.examples,
        job.rounding.micro_batch_tokens,
        job.train.precision,
        together=False,
    )
    figures = {
        "seed": number,
        "steps": outcome.step,
        "kept_step": outcome.kept_step,
        "ended_early": outcome.ended_early,
        "tokens_seen": outcome.tokens_seen,
        "resumed_from": outcome.resumed_from,
        **{k: v for k, v in outcome.figures.items() if k.startswith("train/")},
        **{f"dev/{name}": value for name, value in scorer.figures(outputs).values.items()},
    }
    path = _weights_path(plan.output, number)
    plan.output.fs.create_dir(path.rpartition("/")[0], recursive=True)
    with plan.output.fs.open_output_stream(path) as stream:
        write_tensors(stream, weights_of(outcome.model))
    plan.output.write_bytes(
        f"seeds/{number}.json",
        json.dumps(figures, indent=1, sort_keys=True).encode(),
        figures=figures,
        content=False,
    )


def _weights_path(output: ArtifactWriter, number: int) -> str:
    return f"{output.work}/weights/{number}.safetensors"


def best_first(
    seeds: Iterable[Mapping[str, Any]], metric: str, higher_is_better: bool
) -> list[Mapping[str, Any]]:
    """Runs by their metric on dev; the lower seed first of equals, those without it last."""
    sign = -1.0 if higher_is_better else 1.0

    def cost(one: Mapping[str, Any]) -> tuple[float, int]:
        value = one.get(f"dev/{metric}")
        return float("inf") if value is None else sign * float(value), one["seed"]

    return sorted(seeds, key=cost)


def _write(plan: Plan, scorer: Scorer, seeds: int, watched: TaskExamples) -> None:
    """The files of the best seed's model, and what is known of its mistakes."""
    from stages.model_folder import model_files, onnx_file
    from stages.training.device import apply, place, this_machine
    from stages.training.task_outputs import task_outputs
    from stages.training.tensor_files import read_tensors
    from stages.training.weights import set_weights, weights_of

    finished = _finished_seeds(plan.output)
    ranked = best_first(finished.values(), scorer.metric, scorer.higher_is_better)
    chosen = int(ranked[0]["seed"])
    described = task_description(plan.task)
    model = new_model(plan, described)
    path = _weights_path(plan.output, chosen)
    set_weights(model, read_tensors(plan.output.fs, path), path)
    device = "cuda" if plan.use_gpu else "cpu"
    placement = place(device, plan.config["train"]["precision"], this_machine())
    outputs = task_outputs(
        model.to(apply(placement)),
        watched,
        plan.settings["rounding"]["micro_batch_tokens"],
        plan.config["train"]["precision"],
        together=False,
    )
    model.cpu()
    about = {
        "task": plan.name,
        "null_threshold": scorer.null_threshold(outputs),
        **{
            key: described.get(key)
            for key in (
                "objective", "max_length", "overlap", "max_question_length", "max_answer_length",
                "scheme",
            )
        },
    }  # fmt: skip
    labels = [plan.name] if described["objective"] == "regression" else described["classes"]
    output = plan.output
    files = model_files(model, labels, load_tokenizer(plan.task), about)
    if plan.config["onnx"]:
        rows = [
            (watched.input_ids[row].tolist(), int(watched.a_length[row]))
            for row in range(min(len(watched), ONNX_ROWS))
        ]
        output.write_bytes("model.onnx", onnx_file(model, labels, about, rows), content=False)
    figures = scorer.figures(outputs)
    output.write_bytes(
        FIGURES,
        json.dumps(
            {
                "dev": figures.values,
                "notes": figures.notes,
                "metric": scorer.metric,
                "higher_is_better": scorer.higher_is_better,
                "seed": chosen,
                "seeds": [finished[number] for number in sorted(finished)],
            },
            indent=1,
            sort_keys=True,
        ).encode(),
        content=False,
    )
    lines = [json.dumps(row, ensure_ascii=False) for row in scorer.predictions(outputs)]
    output.write_bytes(PREDICTIONS, "".join(f"{x}\n" for x in lines).encode(), content=False)
    output.write_bytes(PAGE, scorer.page(outputs).encode(), content=False)
    tables = tables_json(scorer.tables(outputs))
    output.write_bytes(TABLES, tables.encode(), content=False)
    tensors = weights_of(model)
    digest = tensors_digest(
        {name: (str(t.dtype), t.shape, t.numpy().tobytes()) for name, t in tensors.items()}
    )
    for name, data in files.items():
        if name != WEIGHTS:
            output.write_bytes(name, data)
    # Last: with it the model is whole.
    output.write_bytes(
        WEIGHTS,
        files[WEIGHTS],
        digest=digest,
        rows=len(tensors),
        figures={"parameters": sum(tensor.numel() for tensor in tensors.values())},
    )


def new_model(plan: Plan, described: Mapping[str, Any]) -> BertForTask:
    """A model of the task's shape; its weights are to be set."""
    from model.task_heads import BertForTask

    return BertForTask(
        plan.model, described["kind"], classes_of(described), plan.config["train"]["head_dropout"]
    )
