"""Predictions of many rows through Ray Data: a model in each actor, a part of the rows at a time.

The rows are cut into files first, so that any format that is read here can be spread, a damaged
row costs itself, and each part's result is a file of its own, put together in the rows' order.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
import traceback
from collections.abc import Iterable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.cluster import Cluster
from pipeline.config import ClusterConfig
from pipeline.quiet import native_stderr_aside
from pipeline.stage import StageError, UserError
from stages.predict_command import Request, columns, load, write_results
from stages.predict_input import Item
from stages.predict_output import SUFFIXES, merge, open_sink, temporary, writing
from stages.predict_tally import Tally
from stages.prediction_rows import Unusable
from stages.training.device import Machine, this_machine

if TYPE_CHECKING:
    import pyarrow as pa

PART_CHARACTERS = 2_000_000
"""Text of a part: some seconds to minutes of work."""

FAILED = "failed"


def run_in_ray(request: Request, rows: Iterable[Item], cluster: ClusterConfig) -> Tally:
    """Predict, and write or print the results; in their order.

    All nodes of a cluster must see the folders of the model and of the output under one path.

    Raises:
        UserError, StageError: as of `stages.predict_command.run`.
    """
    # What is wrong with the model is said before Ray starts; a GPU is left to those who predict.
    # What it has to say of this process's device is not theirs.
    asked = request if request.device == "mps" else replace(request, device="cpu")
    checked = load(asked, said_by_none)
    if cluster.address is None:
        device_of(request.device, Cluster(cluster).capacity().gpus, this_machine())
    made_of = columns(checked, request)
    del checked
    target = None if request.output is None else request.output.absolute()
    in_parts = target is not None and target.suffix not in SUFFIXES
    suffix = ".jsonl" if target is None or (in_parts and request.as_json) else ".parquet"
    if target is not None and not in_parts:
        suffix = target.suffix
    beside = None if target is None else target.parent
    with nullcontext() if target is None else writing(target):
        work = Path(tempfile.mkdtemp(prefix=".clozeline-predict-", dir=beside))
    try:
        with nullcontext() if target is None else writing(target):
            parts = list(cut(rows, work))
        tally = _through(request, parts, suffix, cluster)
        try:
            tally.require(request.most_unusable)
        except StageError:
            for line in tally.lines():
                print(line, file=sys.stderr)
            raise
        results = [result_of(part, suffix) for part in parts]
        with nullcontext() if target is None else writing(target):
            _deliver(results, target, work, made_of)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return tally


def said_by_none(text: str) -> None:
    """Notices come with the results of an actor."""


def cut(rows: Iterable[Item], work: Path) -> Iterator[Path]:
    """Files of numbered rows, of some `PART_CHARACTERS` each; at least one."""
    held: list[str] = []
    size = parts = 0
    for number, row in enumerate(rows):
        values = row.to_dict() if isinstance(row, Unusable) else dict(row)
        held.append(json.dumps([number, values], default=list))
        size += len(held[-1])
        if size >= PART_CHARACTERS:
            yield _part(work, parts, held)
            held, size, parts = [], 0, parts + 1
    if held or not parts:
        yield _part(work, parts, held)


def _part(work: Path, number: int, held: list[str]) -> Path:
    path = work / f"rows-{number:05}.json"
    path.write_text("\n".join(held), encoding="ascii")
    return path


def part_rows(path: Path) -> Iterator[tuple[int, Item]]:
    """What `cut` wrote."""
    with path.open(encoding="ascii") as file:
        for line in file:
            number, values = json.loads(line)
            bad = Unusable(values["unusable"], values["detail"]) if "unusable" in values else None
            yield number, values if bad is None else bad


def result_of(part: Path, suffix: str) -> Path:
    """Where the results of a part are."""
    return part.with_name(part.name.replace("rows-", "part-")).with_suffix(suffix)


class PartPredictor:
    """What Ray Data runs in an actor: a model, and a part at a time."""

    def __init__(self, request: Request, suffix: str) -> None:
        self._request = request
        self._suffix = suffix
        self._failure = ""
        try:
            self._predictor = load(request, said_by_none)
        except (UserError, StageError) as error:
            # A constructor that raises is called again for ever.
            self._failure = str(error)
        except Exception:
            self._failure = traceback.format_exc()

    def __call__(self, batch: Mapping[str, Any]) -> dict[str, list[str]]:
        """Predict the parts of a batch; returns a record of each, as JSON."""
        return {"record": [json.dumps(self._one(Path(part))) for part in batch["part"]]}

    def _one(self, part: Path) -> dict[str, Any]:
        if self._failure:
            return {FAILED: self._failure}
        try:
            tally = Tally()
            target = result_of(part, self._suffix)
            making = temporary(target)
            made_of = columns(self._predictor, self._request)
            sink = open_sink(making, made_of, self._request.output or target)
            write_results(self._predictor, self._request, part_rows(part), sink, tally)
            sink.close()
            making.replace(target)
            notices = list(self._predictor.notices)
            return {"part": part.name, "tally": tally.to_json(), "notices": notices}
        except StageError as error:
            return {FAILED: str(error)}
        except Exception:
            return {FAILED: f"{part.name}: {traceback.format_exc()}"}


def device_of(requested: str, gpus: float, here: Machine | None) -> str:
    """The device that an actor is told, from the one that was asked for.

    Args:
        requested: as of `Predictor.load`. Of "cuda:N" the number is left to Ray.
        gpus: that Ray has for this run.
        here: what torch finds, where the actors run on this machine; None: they find out.

    Raises:
        UserError: GPUs are asked for, and Ray has none.
    """
    if requested in ("cpu", "mps"):
        return requested
    if requested == "auto":
        if gpus < 1 or (here is not None and not here.cuda_devices):
            return "cpu"
        return "auto" if here is None else "cuda"
    if gpus < 1:
        raise UserError(
            f"--device {requested}: Ray has no GPU for this run. Leave --device out, or see "
            "cluster.num_gpus"
        )
    return "cuda"


def _through(request: Request, parts: list[Path], suffix: str, config: ClusterConfig) -> Tally:
    told = replace(request, folder=request.folder.absolute(), words=(), input=None)
    ray = Cluster(config)
    records: dict[str, dict[str, Any]] = {}
    said: set[str] = set()
    with native_stderr_aside():
        try:
            ray.start()
            room = ray.capacity()
            here = this_machine() if ray.own else None
            told = replace(told, device=device_of(request.device, room.gpus, here))
            uses_gpu = told.device in ("cuda", "auto")
            actors = int(room.gpus if uses_gpu else room.cpus) or 1
            for record in _records(told, parts, suffix, min(actors, len(parts)), uses_gpu):
                if FAILED in record:
                    raise StageError(record[FAILED])
                records[record["part"]] = record["tally"]
                for notice in record["notices"]:
                    if notice not in said:
                        print(notice, file=sys.stderr)
                        said.add(notice)
                print(f"{len(records)} of {len(parts)} parts", file=sys.stderr)
        finally:
            ray.stop()
    tally = Tally()
    for part in parts:
        tally.add(records[part.name])
    return tally


def _records(
    request: Request, parts: list[Path], suffix: str, actors: int, uses_gpu: bool
) -> Iterator[dict[str, Any]]:
    import ray

    from stages.nodes import worker_deaths

    items = ray.data.from_items(
        [{"part": str(part)} for part in parts], override_num_blocks=len(parts)
    )
    # Parts need next to no memory of Ray's.
    items.context.op_resource_reservation_enabled = False
    found = items.map_batches(
        PartPredictor,
        fn_constructor_kwargs={"request": request, "suffix": suffix},
        batch_size=1,
        compute=ray.data.ActorPoolStrategy(size=actors),
        num_cpus=1,
        num_gpus=1 if uses_gpu else 0,
        max_restarts=0,
        max_task_retries=0,
    )
    try:
        for row in found.iter_rows():
            yield json.loads(row["record"])
    except worker_deaths() as error:
        raise StageError(
            "a worker process died, most likely for want of memory: lower cluster.num_cpus "
            f"(--set cluster.num_cpus=1). Ray says: {str(error).splitlines()[0]:.300}"
        ) from error


def _deliver(results: list[Path], target: Path | None, work: Path, made_of: pa.Schema) -> None:
    """Print the results, or put them where they were asked for, all at once."""
    if target is None:
        for path in results:
            with path.open(encoding="utf-8") as file:
                shutil.copyfileobj(file, sys.stdout)
    elif target.suffix in SUFFIXES:
        whole = work / f"whole{target.suffix}"
        merge(results, whole, made_of)
        whole.replace(target)
    else:
        folder = work / "parts"
        folder.mkdir()
        for path in results:
            path.replace(folder / path.name)
        folder.rename(target)
