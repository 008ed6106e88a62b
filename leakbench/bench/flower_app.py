"""A Flower app that does the private round, simulated by its own engine: `python -m leakbench.bench.flower_app ASKED OUT`.

Runs alone in a process (`leakbench.bench.flower`): one process of Ray a core, each with one client at a time.
"""

from __future__ import annotations

import json
import sys
import time
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from torch import nn

from leakbench.bench.plain import Step, local_training
from leakbench.bench.task import BATCH, HELD, Task, fresh_model, task
from leakbench.bench.ways import private_step
from leakbench.engine.memory import keep_freed_memory

__all__ = ["main"]

BEGAN = time.perf_counter()


@lru_cache(maxsize=1)
def _at_hand(way: str) -> tuple[Task, nn.Module, Step]:
    """Return what a process of Ray makes once: the data, a model and its local iteration."""
    keep_freed_memory()
    return (task(1, 1), *private_step(way, fresh_model()))


def _train(message: Message, context: Context) -> Message:
    config: Any = message.content["config"]
    made, model, step = _at_hand(str(config["way"]))
    arrays: Any = message.content["arrays"]
    start = arrays.to_torch_state_dict()
    inputs, labels = made.held(int(context.node_config["partition-id"]))
    local_training(model, start, step, inputs, labels, BATCH, int(config["iterations"]))
    trained = {n: p.detach() for n, p in model.named_parameters()}
    counted = MetricRecord({"num-examples": HELD})
    return Message(content=RecordDict({"arrays": ArrayRecord(trained), "metrics": counted}), reply_to=message)


def main() -> None:
    """Run the rounds and write their seconds."""
    asked, out = json.loads(sys.argv[1]), Path(sys.argv[2])
    keep_freed_memory()
    ends: list[float] = []
    answers: list[int] = []

    def counted(replies: list[RecordDict], weighted_by: str) -> MetricRecord:
        """Count the clients that answered: one that fails is left out of the mean and would make the round short."""
        answers.append(len(replies))
        return MetricRecord()

    def evaluated(number: int, arrays: ArrayRecord) -> None:
        """Note when a round has ended; Flower calls it before the first one, too."""
        ends.append(time.perf_counter())

    def serve(grid: Grid, context: Context) -> None:
        strategy = FedAvg(
            fraction_train=1.0,
            fraction_evaluate=0.0,
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

    server, client = ServerApp(), ClientApp()
    server.main()(serve)
    client.train()(_train)
    resources = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}}
    run_simulation(server, client, asked["clients"], "ray", resources)
    if len(ends) != asked["rounds"] + 1 or answers != [asked["clients"]] * asked["rounds"]:
        sys.exit(f"{len(ends) - 1} of {asked['rounds']} rounds ended, {answers} clients answered in them")
    later = [b - a for a, b in zip(ends[1:], ends[2:], strict=False)]
    seconds = {"first": ends[1] - BEGAN, "later": later, "whole": time.perf_counter() - BEGAN}
    out.write_text(json.dumps(seconds), encoding="utf-8")


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
