"""One training process of a gloo group; started by test_loop with a JSON argument."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from pyarrow.fs import LocalFileSystem

from model.config import BertConfig
from stages.training import checkpoint
from stages.training.job import NoHooks, Rounding, TrainConfig, TrainJob, Validation
from stages.training.loop import pretrain
from stages.training.row_groups import read_index
from stages.training.weights import weights_of


class Losses(NoHooks):
    def __init__(self, stop_at: int) -> None:
        self.losses: dict[int, float] = {}
        self.held_out: dict[int, dict[str, float]] = {}
        self.notices: list[str] = []
        self._steps, self._stop_at = 0, stop_at

    def log(self, step: int, values: Mapping[str, float]) -> None:
        if "train/loss" in values:
            self.losses[step] = values["train/loss"]
        else:
            self.held_out[step] = dict(values)

    def should_stop(self) -> bool:
        self._steps += 1
        return self._steps == self._stop_at

    def notice(self, text: str) -> None:
        self.notices.append(text)


def die_while_writing(step: int) -> None:
    """Make the process kill itself in the middle of the second file of a step's checkpoint."""
    write = checkpoint.write_tensors

    def deadly(stream: Any, tensors: Mapping[str, torch.Tensor]) -> dict[str, Any]:
        if tensors.get("step/mlm.bias") == step:
            stream.write(b"half a checkpoint")
            stream.flush()
            os.kill(os.getpid(), signal.SIGKILL)
        return write(stream, tensors)

    checkpoint.write_tensors = deadly  # type: ignore[assignment]


def main(told: dict) -> None:
    if told["kill_at"]:
        die_while_writing(told["kill_at"])
    join(told)
    train(told)
    leave()


def join(told: dict) -> None:
    """Enter the group of `told["workers"]` processes."""
    dist.init_process_group(
        "gloo",
        init_method=f"file://{told['rendezvous']}",
        rank=told["rank"],
        world_size=told["workers"],
    )


def leave() -> None:
    # Gloo ends a process with an error whose peer leaves while it is still taking leave itself.
    dist.barrier()
    dist.destroy_process_group()


def train(told: dict) -> None:
    """Train as one rank of the group; rank 0 writes its figures to `told["out"]`."""
    local = LocalFileSystem()
    files = read_index(local, sorted(str(p) for p in Path(told["shards"]).glob("*.parquet")))
    changed = {
        "steps": 50, "global_batch_size": 16, "learning_rate": 2e-3, "precision": "float32",
        "checkpoint_every_steps": 30, "log_every_steps": 1,
    }  # fmt: skip
    job = TrainJob(
        model=BertConfig(
            vocab_size=64, hidden_size=32, num_layers=2, num_heads=2, max_position_embeddings=40,
            hidden_dropout=told["dropout"], attention_dropout=told["dropout"],
        ),
        train=TrainConfig(**{**changed, **told["train"]}),
        rounding=Rounding(micro_batch_tokens=200, threads=1, **told.get("rounding", {})),
        seed=7,
        filesystem=local,
        copies=(files,),
        checkpoint_filesystem=local,
        checkpoint_folder=told["checkpoints"],
        fingerprint="f" * 64,
        attempt="workers",
        init_from=told.get("init_from"),
        init_moments=told.get("init_moments"),
        validation=Validation(files=files[:2], mask_token_id=4, max_rows=told.get("held_out", 0))
        if told.get("held_out")
        else None,
        device="cpu",
    )  # fmt: skip
    hooks = Losses(told["stop_at"])
    outcome = pretrain(job, hooks)
    if told["rank"] == 0:
        digest = hashlib.sha256()
        # Of a stopped run the checkpoint counts, and a model that is cut stays so.
        for weight in ({} if outcome.stopped else weights_of(outcome.model)).values():
            digest.update(weight.numpy().tobytes())
        figures = {
            "losses": hooks.losses, "stopped": outcome.stopped, "weights": digest.hexdigest(),
            "held_out": hooks.held_out, "notices": hooks.notices,
        }  # fmt: skip
        Path(told["out"]).write_text(json.dumps(figures))


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(json.loads(sys.argv[1]))
