"""One process of a gloo group that trains with a model cut among its ranks; started by
test_sharding with a JSON argument."""

from __future__ import annotations

import json
import sys
from typing import Any

import torch
import uneven
import worker
from torch.utils._python_dispatch import TorchDispatchMode


class Sums(TorchDispatchMode):
    """Counts how often gradients are summed over ranks."""

    count = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict | None = None
    ) -> Any:
        self.count += "reduce_scatter" in str(func)
        return func(*args, **(kwargs or {}))


def main(told: dict) -> None:
    worker.join(told)
    for number, case in enumerate(told["batches"]):
        examples = uneven.batch({int(row): n for row, n in case["masked"].items()}, case["rows"])
        for name in ("float32", "float64"):
            with Sums() as sums:
                losses, whole = uneven.gradient(
                    examples, told["rank"], told["workers"], getattr(torch, name), sharded=True
                )
            seen = {
                "mlm": losses.parts[0], "pair": losses.parts[1], "norm": losses.grad_norm,
                "gradient": whole,
                "sums": sums.count,
            }  # fmt: skip
            torch.save(seen, f"{told['root']}/{number}-{name}-{told['rank']}")
    for name, run in told["runs"].items():
        worker.train({**told, **run, "out": f"{told['root']}/{name}.json"})
    worker.leave()


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(json.loads(sys.argv[1]))
