"""Ray Train's torch backend, with workers that take SIGTERM in their own way.

Ray Train trains in a thread, and Python sets handlers in the main one: there the functions of a
backend run.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ray.train.torch import TorchConfig
from ray.train.torch.config import _TorchBackend

from stages.leaving import install


class _LeavingTorchBackend(_TorchBackend):  # type: ignore[misc]
    def on_training_start(self, worker_group: Any, backend_config: Any) -> None:
        super().on_training_start(worker_group, backend_config)
        worker_group.execute(install)


@dataclass
class LeavingTorchConfig(TorchConfig):  # type: ignore[misc]
    """As `TorchConfig`; workers may wrap their training in `stages.leaving.training`."""

    @property
    def backend_cls(self) -> type[_TorchBackend]:
        """The backend."""
        return _LeavingTorchBackend
