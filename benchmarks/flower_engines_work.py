"""The work that `flower_engines.py` times, in a module of its own, since Ray's processes import it by name.

Ten nodes take part in every round; node p does in round r the work of client (10 r + p) of 100, on digits of 8 x 8: ten steps of
SGD on batches of eight. So all ways train the same clients in the same rounds, and their weights can be compared.
"""

from __future__ import annotations

import json
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg, Result
from flwr.simulation import run_simulation
from safetensors.numpy import save_file
from sklearn.datasets import load_digits
from torch import Tensor, nn

CLIENTS, COHORT, STEPS, BATCH, RATE = 100, 10, 10, 8, 0.1

COMPARED = 2
"""Rounds after which weights are compared."""


def build(network: str) -> nn.Module:
    """Return the network, `mlp` of 9,610 or `cnn` of 13,706 parameters, at the same first weights everywhere."""
    torch.manual_seed(0)
    if network == "mlp":
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(512, 16),
        nn.ReLU(),
        nn.Linear(16, 10),
    )


class Digits:
    """Each client's batches, made once a process."""

    def __init__(self) -> None:
        digits = load_digits()
        inputs = torch.tensor(digits.images, dtype=torch.float32)[:, None] / 16
        labels = torch.tensor(digits.target)
        places = torch.randint(len(labels), (CLIENTS, STEPS, BATCH), generator=torch.Generator().manual_seed(0))
        self.inputs, self.labels = inputs[places], labels[places]

    def __call__(self, node: int, number: int) -> tuple[Tensor, Tensor]:
        """Return inputs (L, B, 1, 8, 8) and labels (L, B) of a node in a round, from 1."""
        client = (COHORT * number + node) % CLIENTS
        return self.inputs[client], self.labels[client]


def train(model: nn.Module, inputs: Tensor, labels: Tensor) -> None:
    """Take a client's steps, as everybody writes them."""
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    for x, y in zip(inputs, labels, strict=True):
        optimizer.zero_grad()
        loss: Any = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()


_MADE: dict[str, tuple[nn.Module, Digits]] = {}


def _train(message: Message, context: Context) -> Message:
    config: Any = message.content["config"]
    arrays: Any = message.content["arrays"]
    network = str(config["network"])
    if network not in _MADE:
        torch.set_num_threads(1)
        _MADE[network] = (build(network), Digits())
    model, digits = _MADE[network]
    model.load_state_dict(arrays.to_torch_state_dict())
    train(model, *digits(int(context.node_config["partition-id"]), int(config["server-round"])))
    content = {"arrays": ArrayRecord(model.state_dict()), "metrics": MetricRecord({"num-examples": STEPS * BATCH})}
    return Message(RecordDict(content), reply_to=message)


def client_app() -> ClientApp:
    """Return the client."""
    app = ClientApp()
    app.train()(_train)
    return app


def serve(grid: Grid, network: str, rounds: int, ends: list[float], weights: dict[str, Any] | None = None) -> Result:
    """Run Flower's FedAvg on a grid, noting when each round has ended, and before the first; and the weights to compare."""
    strategy = FedAvg(fraction_train=1.0, fraction_evaluate=0.0, min_train_nodes=COHORT, min_available_nodes=COHORT)

    def evaluated(number: int, arrays: ArrayRecord) -> None:
        ends.append(time.perf_counter())
        if number == COMPARED and weights is not None:
            weights.update({name: array.numpy() for name, array in arrays.items()})

    return strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord(build(network).state_dict()),
        num_rounds=rounds,
        train_config=ConfigRecord({"network": network}),
        evaluate_fn=evaluated,
    )


def main() -> None:
    """Run Flower's simulation engine: NETWORK ROUNDS CORES OUT; write the seconds and the weights."""
    network, rounds, cores, out = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4])
    began, ends, weights = time.perf_counter(), list[float](), dict[str, Any]()

    def work(grid: Grid, context: Context) -> None:
        serve(grid, network, rounds, ends, weights)

    server = ServerApp()
    server.main()(work)
    backend: Any = {"init_args": {"num_cpus": cores}, "client_resources": {"num_cpus": 1, "num_gpus": 0.0}}
    run_simulation(server, client_app(), COHORT, "ray", backend)
    save_file(weights, out.with_suffix(".safetensors"))
    later = [b - a for a, b in pairwise(ends[1:])]
    found = {"first": ends[1] - began, "later": later, "whole": time.perf_counter() - began}
    out.write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main()
