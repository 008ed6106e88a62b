"""How fast an engine hands out cells that do nothing: what a sweep itself costs.

    python benchmarks/sweep_rate.py [--engine ray] [--cells 50000] [--workers 2] [--address HOST:6379]

The cells go through the same window, journal and engine as measured ones; only the work is empty, and nothing is merged. A line
every tenth of them says the rate, so that one that falls with the number of cells is seen.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import resource
import tempfile
import time
from contextlib import closing
from pathlib import Path

from leakbench.core.request import Request
from leakbench.core.scripts import one_line
from leakbench.storage.store import content_hash
from leakbench.study.engines import Places, engine_of
from leakbench.study.journal import open_journal
from leakbench.study.task import Task, TaskOutcome


def nothing(task: Task) -> TaskOutcome:
    """Do nothing of a cell."""
    return TaskOutcome(task.key, "done", hash=task.key, run=f"digits-none-cpl-{task.key[:8]}")


def main() -> None:
    """Print the rates."""
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--engine", default="ray")
    asked.add_argument("--address")
    asked.add_argument("--cells", type=int, default=50_000)
    asked.add_argument("--workers", type=int, default=2)
    given = asked.parse_args()
    with tempfile.TemporaryDirectory() as name:
        measure(given.engine, Places(given.address, given.workers), given.cells, Path(name))


def measure(name: str, places: Places, cells: int, folder: Path) -> None:
    """Hand out so many cells and print how long it took."""
    engine = dataclasses.replace(engine_of(name, places, folder / "submitit"), work=nothing)
    began = time.monotonic()
    tasks = (Task(content_hash(n), Request(seed=n), folder / "runs") for n in range(cells))
    first, done, at = 0.0, 0, began
    with open_journal(folder / "cells.jsonl") as journal, closing(engine(tasks)) as outcomes:
        for outcome in outcomes:
            journal.append(outcome)
            done += 1
            first = first or time.monotonic() - began
            if done % max(1, cells // 10) == 0:
                now = time.monotonic()
                print(f"{done} of {cells}: {cells / 10 / (now - at):.0f} cells a second", flush=True)
                at = now
        seconds = time.monotonic() - began
        size = (folder / "cells.jsonl").stat().st_size
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    load = os.getloadavg()[0]
    print(
        f"{name}: {cells} cells in {seconds:.1f} s, the first after {first:.1f} s, {cells / (seconds - first):.0f} a second"
    )
    print(
        f"journal: {size / cells:.0f} bytes a cell; driver: {peak:.0f} MiB at most; load of the machine at the end: {load:.1f}"
    )


if __name__ == "__main__":
    one_line(main)
