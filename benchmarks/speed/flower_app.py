"""A Flower app that does the private round, simulated by its own engine: `python -m benchmarks.speed.flower_app ASKED OUT`.

Runs alone in a process (`benchmarks.speed.flower`), which starts Ray: one process a core, each with one client at a time.
"""

from __future__ import annotations

import json
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Context, MetricRecord, RecordDict
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

from benchmarks.speed.flower_client import client_app
from benchmarks.speed.task import fresh_model
from leakbench.engine.memory import keep_freed_memory

__all__ = ["main"]

BEGAN = time.perf_counter()


def simulate(asked: dict[str, Any]) -> dict[str, Any]:
    """Run the rounds and return their seconds; exit if a client did not answer."""
    ends: list[float] = []
    answers: list[int] = []

    def evaluated(number: int, arrays: ArrayRecord) -> None:
        """Record the end of a round; Flower calls it before the first one too."""
        ends.append(time.perf_counter())

    def counted(replies: list[RecordDict], weighted_by: str) -> MetricRecord:
        """Count the clients that answered: a failed client is not in the mean and would shorten the round."""
        answers.append(len(replies))
        return MetricRecord()

    def serve(grid: Grid, context: Context) -> None:
        strategy = FedAvg(
            fraction_train=1.0,
            fraction_evaluate=0.0,
            min_train_nodes=asked["clients"],  # Nodes appear one by one, so a share of the present ones is too few.
            min_available_nodes=asked["clients"],
            train_metrics_aggr_fn=counted,
        )
        strategy.start(
            grid=grid,
            initial_arrays=ArrayRecord(fresh_model().state_dict()),
            num_rounds=asked["rounds"],
            train_config=ConfigRecord({"way": asked["way"], "iterations": asked["iterations"]}),
            evaluate_fn=evaluated,
        )

    server = ServerApp()
    server.main()(serve)
    backend: Any = {
        "init_args": {"num_cpus": asked["cores"]},
        "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
    }
    run_simulation(server, client_app(), asked["clients"], "ray", backend)
    if answers != [asked["clients"]] * asked["rounds"]:
        sys.exit(f"in {asked['rounds']} rounds {answers} clients answered, expected {asked['clients']} in each")
    later = [b - a for a, b in pairwise(ends[1:])]
    return {"first": ends[1] - BEGAN, "later": later, "whole": time.perf_counter() - BEGAN}


def main() -> None:
    """Run the requested simulation and write the seconds."""
    asked, out = json.loads(sys.argv[1]), Path(sys.argv[2])
    keep_freed_memory()
    out.write_text(json.dumps(simulate(asked)), encoding="utf-8")


if __name__ == "__main__":
    main()
