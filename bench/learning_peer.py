"""transformers' Trainer on the rows of a run, for the same time, judged by the same figures.

`python -m bench.learning_peer --mask STORE/mask/128/FINGERPRINT --heldout
STORE/mask/128-heldout/FINGERPRINT --vocab STORE/vocab/FINGERPRINT --minutes 30` needs transformers
and accelerate. Rows are padded to the full length, as its collators do by default; the optimiser is
AdamW with the rate and rows a step that left the unigram baseline in trials of ours.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import torch
from pyarrow.fs import LocalFileSystem
from torch import Tensor

from bench.train_sides import pad, weights
from model.bert import BertForPreTraining
from model.config import SIZES, BertConfig
from model.huggingface import config_to_huggingface, from_huggingface, to_huggingface
from stages.training.evaluate import evaluate
from stages.training.examples import concatenate
from stages.training.row_groups import Limits, RowGroups, read_index
from stages.training.weights import set_weights

LENGTH = 128
TIMED_STEPS = 20


class Rows(torch.utils.data.Dataset[dict[str, Tensor]]):
    """Padded rows, one by one."""

    def __init__(self, columns: dict[str, Tensor]) -> None:
        self._columns = columns

    def __len__(self) -> int:
        return len(self._columns["input_ids"])

    def __getitem__(self, row: int) -> dict[str, Tensor]:
        return {name: values[row] for name, values in self._columns.items()}


def main(words: list[str] | None = None) -> int:
    """Train, evaluate, print figures as JSON."""
    options = _options(words)
    torch.set_num_threads(options.threads or torch.get_num_threads())
    filesystem = LocalFileSystem()
    entries = (options.vocab / "data/vocab.txt").read_text("utf-8").split("\n")[:-1]
    limits = Limits(len(entries), LENGTH)
    files = read_index(filesystem, map(str, sorted((options.mask / "data").glob("train-*"))))
    groups = RowGroups(filesystem, files, limits, keep=1)
    examples = concatenate([groups.get(number) for number in range(len(groups))])
    config = BertConfig(
        vocab_size=len(entries),
        hidden_dropout=0.0,
        attention_dropout=0.0,
        **SIZES[options.size],  # type: ignore[arg-type]
    )
    began = time.monotonic()
    model, steps = _train(Rows(pad(examples, LENGTH, config.pad_token_id)), config, options)
    seconds = time.monotonic() - began

    converted = from_huggingface(model.state_dict(), config_to_huggingface(config))
    ours = BertForPreTraining(config)
    set_weights(ours, converted.state_dict, "transformers' model")
    counts = np.zeros(len(entries), np.int64)
    table = pq.read_table(options.mask / "data/label_counts.parquet")
    counts[table["id"].to_numpy()] = table["count"].to_numpy()
    held_out = sorted((options.heldout / "data").glob("validation-*"))
    figures = evaluate(
        ours.eval(),
        filesystem,
        read_index(filesystem, map(str, held_out)),
        limits,
        mask_token_id=entries.index("[MASK]"),
        label_counts=counts,
    )
    seen = {"steps": steps, "rows": steps * options.rows, "seconds": seconds}
    print(json.dumps(seen | figures.values(), indent=1))
    return 0


def _train(rows: Rows, config: BertConfig, options: argparse.Namespace) -> tuple[Any, int]:
    import transformers

    def trainer(steps: int) -> Any:
        values = {k: v for k, v in config_to_huggingface(config).items() if k != "dtype"}
        model = transformers.BertForPreTraining(transformers.BertConfig(**values))
        drawn, _ = to_huggingface(weights(config).state_dict(), config)
        model.load_state_dict(drawn, strict=False)
        model.tie_weights()
        arguments = transformers.TrainingArguments(
            output_dir=str(options.work),
            max_steps=steps,
            per_device_train_batch_size=options.rows,
            learning_rate=options.learning_rate,
            warmup_steps=round(0.05 * steps),
            lr_scheduler_type="linear",
            weight_decay=0.01,
            adam_epsilon=1e-6,
            optim="adamw_torch_fused",
            bf16=True,
            use_cpu=True,
            logging_steps=50,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            seed=12345,
        )
        return transformers.Trainer(model, arguments, train_dataset=rows)

    # A step's time decides their number, so that the schedule ends with the budget.
    trainer(2).train()
    began = time.monotonic()
    trainer(TIMED_STEPS).train()
    each = (time.monotonic() - began) / TIMED_STEPS
    steps = options.steps or int(60 * options.minutes / each)
    print(f"{each:.3f} s a step: {steps:,} steps", flush=True)
    last = trainer(steps)
    last.train()
    return last.model, steps


def _options(words: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.learning_peer", description=__doc__)
    for name in ("mask", "heldout", "vocab"):
        parser.add_argument(f"--{name}", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--size", default="mini", choices=sorted(SIZES))
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--steps", type=int, help="in the place of a time")
    parser.add_argument("--rows", type=int, default=16, help="of a step")
    parser.add_argument("--learning-rate", type=float, default=4e-4)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--work", type=Path, default=Path("learning-peer"))
    return parser.parse_args(words)


if __name__ == "__main__":
    raise SystemExit(main())
