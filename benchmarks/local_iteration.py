"""How long a local iteration of a federation takes on a device, by the number of clients that train side by side.

    python benchmarks/local_iteration.py [--device cuda] [--dataset digits] [--defense fed_cdp] [--clients 10 100] [--steps 60]

The examples are random numbers of the data set's shape. A line each: the milliseconds of an iteration, the median of three times.
All clients are computed at once, while a training on a CPU takes as many at a time as fit into its caches.
"""

from __future__ import annotations

import argparse
import time
from statistics import median

import torch

from leakbench.cell import Cell, resolve_cell
from leakbench.core.errors import InputError
from leakbench.core.request import Request
from leakbench.core.rng import generators
from leakbench.core.scripts import one_line
from leakbench.core.types import Network
from leakbench.experiment.stage_train import fresh_network
from leakbench.federated.client import Examples, local_iterations
from leakbench.models import one_hot


def examples_of(cell: Cell, clients: int, steps: int) -> Examples:
    """Return random examples of the clients."""
    rng, batch = torch.Generator().manual_seed(0), cell.settings.federation.batch
    shape, device = (clients, steps, batch), cell.settings.device
    inputs = torch.rand(*shape, *cell.data.shape, generator=rng).to(device)
    labels = torch.randint(cell.data.classes, shape, generator=rng)
    targets, weights = one_hot(labels, cell.data.classes).to(device), torch.ones(shape, device=device)
    return Examples(inputs, targets, weights, batch, alone=False)


@torch.no_grad()
def milliseconds(cell: Cell, clients: int, steps: int) -> float:
    """Return the time of one local iteration."""
    examples, (model, start) = examples_of(cell, clients, steps), fresh_network(cell, trained=True)
    clock, times = cell.defense.clock(cell.settings.federation, 0), []
    for _ in range(4):  # The first time is not counted.
        rngs = generators(0, "noise", [(0, lane) for lane in range(clients)])
        began = time.perf_counter()
        rate, stations = cell.settings.federation.learning_rate, cell.defense.stations
        for _ in local_iterations(Network(model, start), examples, rate, stations, clock, rngs):
            pass
        if examples.inputs.is_cuda:
            torch.cuda.synchronize()
        times.append(1000 * (time.perf_counter() - began) / steps)
    return median(times[1:])


def main() -> None:
    """Print a line for each number of clients."""
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--device", default="auto")
    asked.add_argument("--dataset", default="digits")
    asked.add_argument("--defense", default="fed_cdp")
    asked.add_argument("--clients", type=int, nargs="+", default=[10, 100])
    asked.add_argument("--steps", type=int, default=60)
    given = asked.parse_args()
    if min(given.steps, *given.clients) < 1:
        raise InputError("clients, steps: expected whole numbers above 0")
    request = Request(dataset=given.dataset, defense=given.defense, attack="cpl", device=given.device)
    cell = resolve_cell(request, None)
    batch, device = cell.settings.federation.batch, cell.settings.device
    for clients in given.clients:
        took = milliseconds(cell, clients, given.steps)
        print(f"{given.dataset}, {given.defense}, {clients} clients of {batch} examples, {device}: {took:.2f} ms")


if __name__ == "__main__":
    one_line(main)
