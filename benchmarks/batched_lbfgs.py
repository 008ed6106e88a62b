"""CPL on 50 victims together against 50 searches of `torch.optim.LBFGS`, one by one, in the same process.

    python benchmarks/batched_lbfgs.py [--dataset lfw] [--victims 50] [--outer 10] [--alone 10]

Prints seconds a victim for both, and their ratio. `--alone` searches are timed one by one and stand for all victims.
"""

from __future__ import annotations

import argparse
import dataclasses
import time
from pathlib import Path

import torch
from torch import Tensor

from leakbench.attack.methods.gradient_matching import GradientMatching
from leakbench.attack.slots.stop import Iterations
from leakbench.cell import Request, resolve_cell
from leakbench.federated.view import View
from leakbench.rng import generators
from leakbench.run.experiment import hand_out
from leakbench.run.stage_train import fresh_network
from leakbench.run.victims import Sent, draw_victims, view_of
from leakbench.types import Network


def alone(view: View, victim: int, start: Tensor, targets: Tensor, outer: int) -> None:
    """DLG's loop as its authors wrote it, with the start and labels of the batched search."""
    x = start.clone().requires_grad_()
    optimiser = torch.optim.LBFGS([x])
    truth = {n: u[victim] for n, u in view.update.items()}
    held = {n: p.clone().requires_grad_() for n, p in view.network.parameters.items()}

    def closure() -> Tensor:
        optimiser.zero_grad()
        logits = torch.func.functional_call(view.network.model, held, (x,))
        loss = -(targets * logits.log_softmax(-1)).sum(-1).mean()
        gradient = torch.autograd.grad(loss, list(held.values()), create_graph=True)
        distance = torch.stack([((g - truth[n]) ** 2).sum() for n, g in zip(held, gradient, strict=True)]).sum()
        distance.backward()  # type: ignore[no-untyped-call]
        return distance

    for _ in range(outer):
        optimiser.step(closure)  # type: ignore[no-untyped-call]


def main() -> None:
    """Time both and print the ratio."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--dataset", default="lfw")
    parser.add_argument("--victims", type=int, default=50)
    parser.add_argument("--outer", type=int, default=10)
    parser.add_argument("--alone", type=int, default=10)
    parser.add_argument("--data-dir", type=Path)
    given = parser.parse_args()
    cell = resolve_cell(Request(dataset=given.dataset, victims=given.victims), given.data_dir)
    model, weights = fresh_network(cell, trained=False)
    victims = draw_victims(cell, "type-2", 0, hand_out(cell))
    view = view_of(cell, "type-2", 0, victims, torch.arange(given.victims), Sent(Network(model, weights)))
    attack = cell.attack.method
    assert isinstance(attack, GradientMatching)
    attack = dataclasses.replace(attack, stop=Iterations(limit=given.outer))
    lanes = [(v,) for v in range(given.victims)]
    start, targets = (
        attack.start(view, generators(0, "bench", lanes)),
        attack.labels(view, generators(0, "l", lanes)).targets,
    )

    attack((view,), generators(0, "bench", lanes))  # warm
    began = time.perf_counter()
    attack((view,), generators(0, "bench", lanes))
    together = (time.perf_counter() - began) / given.victims
    began = time.perf_counter()
    for victim in range(given.alone):
        alone(view, victim, start[victim], targets[victim], given.outer)
    single = (time.perf_counter() - began) / given.alone
    print(f"{given.dataset}, {given.outer} outer iterations, {torch.get_num_threads()} threads")
    print(f"together {together:.3f} s a victim, one by one {single:.3f} s a victim, ratio {single / together:.2f}")


if __name__ == "__main__":
    main()
