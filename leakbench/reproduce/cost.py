"""The cost of a defense: processor time of a client's local iteration with and without it, measured in turns on one machine."""

from __future__ import annotations

import dataclasses
import json
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias, TypeVar

import torch

from leakbench.cell import Cell
from leakbench.cell.budget import prepare
from leakbench.cell.cell import hand_out
from leakbench.core.provenance import versions
from leakbench.core.types import Network
from leakbench.experiment.stage_train import fresh_network
from leakbench.federated.simulate import train
from leakbench.measure.statistics import median_interval
from leakbench.reproduce.measure import changed_in
from leakbench.reproduce.table import Line, Table
from leakbench.study.rows import TRAINING, Row
from leakbench.study.stale import hash_of, recorded_in
from leakbench.study.study import Execution

__all__ = ["Arms", "in_turns", "one_round", "seconds", "timed", "with_threads"]

T = TypeVar("T")

Arms: TypeAlias = Mapping[str, Callable[[], object]]
"""{name: the work}, in the order of the turns."""


def seconds(work: Callable[[], object], clock: Callable[[], float] = time.perf_counter) -> float:
    """Return the seconds that a piece of work takes by a clock, by default wall seconds."""
    began = clock()
    work()
    return clock() - began


def with_threads(count: int, work: Callable[[], T]) -> T:
    """Return the result of the work, run with `threads` of PyTorch's threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        return work()
    finally:
        torch.set_num_threads(before)


def in_turns(
    arms: Arms, repeats: int, warm: bool = True, clock: Callable[[], float] = time.perf_counter
) -> list[dict[str, float]]:
    """Return the seconds of each arm in each repeat; each repeat runs all arms once.

    Args:
        warm: Run every arm once before, untimed, since the first run of anything in PyTorch also prepares what later ones find.
        clock: Returns the seconds so far; `time.process_time` for those of the processor.
    """
    if warm:
        for work in arms.values():
            work()
    return [{name: seconds(work, clock) for name, work in arms.items()} for _ in range(repeats)]


def one_round(cell: Cell) -> Callable[[], object]:
    """Return what trains the first round of a cell, without the test of its accuracy."""
    inputs, targets = cell.data.test_inputs[:1], cell.data.test_targets[:1]
    data, partition = dataclasses.replace(cell.data, test_inputs=inputs, test_targets=targets), hand_out(cell)
    model, start = fresh_network(cell, trained=True)
    federation, seed = cell.settings.federation, cell.settings.seed
    return lambda: next(train(Network(model, start), data, partition, federation, cell.defense, seed))


def timed(table: Table, line: Line, scale: str, changed: Mapping[str, Any], execution: Execution) -> list[Row]:
    """Time the first round of a line's cell and of the same without a defense in turns: its row.

    The time is that of one processor, which others' work on the machine does not lengthen. The ratio is the median over the
    repetitions, its interval of order statistics over them; the server's work of a round is part of its iterations.
    """
    began = time.perf_counter()
    request = line.requests(scale, changed)[0]
    cell, plain = (
        prepare(each, execution.data_dir, execution.reporter)
        for each in (request, dataclasses.replace(request, defense="none"))
    )
    f = cell.settings.federation
    arms = {"own": one_round(cell), "none": one_round(plain)}
    turns = with_threads(1, lambda: in_turns(arms, table.repeats, clock=time.process_time))
    own, none = ([turn[arm] for turn in turns] for arm in arms)
    ratio, low, high = median_interval([one / other for one, other in zip(own, none, strict=True)])
    each = 1000 / (f.clients_per_round * f.local_iterations)
    return [
        {f"claimed_{key}": value for key, value in line.claimed("").items()}
        | {"row": line.name, "cell": line.name, "point": TRAINING, "dataset": line.given["dataset"]}
        | {"attack": cell.names["attack"], "defense": cell.names["defense"]}
        | {"cost_ratio": ratio, "cost_ratio_low": low, "cost_ratio_high": high}
        | {"milliseconds": each * statistics.median(own), "milliseconds_none": each * statistics.median(none)}
        | {"repeats": table.repeats, "hash": hash_of([cell]), "scale": line.scale(scale), "seeds": 1}
        | recorded_in([cell, plain])
        | changed_in(changed)
        | {"wall_minutes": round((time.perf_counter() - began) / 60, 1)}
        | {"versions": json.dumps(versions(), sort_keys=True)}
    ]
