"""References in plain PyTorch: one client's local training as users write it, and the private one with `torch.func`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from leakbench.core.types import Parameters

__all__ = ["Step", "local_training", "per_example_step", "plain_step"]

Step: TypeAlias = Callable[[Tensor, Tensor], object]
"""One local iteration on inputs (B, *s) and labels (B,), which changes the model in place."""


def plain_step(model: nn.Module, rate: float) -> Step:
    """Return the usual local iteration: `zero_grad`, loss, `backward`, `step` of `torch.optim.SGD`."""
    optimizer, criterion = torch.optim.SGD(model.parameters(), lr=rate), nn.CrossEntropyLoss()

    def step(inputs: Tensor, labels: Tensor) -> None:
        optimizer.zero_grad()
        criterion(model(inputs), labels).backward()
        optimizer.step()

    return step


def per_example_step(model: nn.Module, rate: float, clip: float, sigma: float) -> Step:
    """Return Fed-CDP's local iteration by `vmap(grad)`: each tensor of each example clipped, noise on the sum.

    n examples that each get noise of sigma * clip have in their sum noise of sqrt(n) times that, drawn once.
    """
    held = dict(model.named_parameters())

    def loss(parameters: Parameters, x: Tensor, y: Tensor) -> Tensor:
        return nn.functional.cross_entropy(functional_call(model, parameters, (x[None],)), y[None])

    each = vmap(grad(loss), in_dims=(None, 0, 0))

    def step(inputs: Tensor, labels: Tensor) -> None:
        count = len(labels)
        grads = each({n: p.detach() for n, p in held.items()}, inputs, labels)
        with torch.no_grad():
            for name, g in grads.items():
                factor = (clip / g.flatten(1).norm(dim=1).clamp_min(1e-12)).clamp_max(1.0)
                total = torch.einsum("i,i...", factor, g)
                if sigma:
                    total = total + torch.randn_like(total) * (sigma * clip * count**0.5)
                held[name].sub_(rate / count * total)

    return step


def local_training(
    model: nn.Module, start: Parameters, step: Step, inputs: Tensor, labels: Tensor, batch: int, iterations: int
) -> Parameters:
    """Train one client from `start` over its examples, batch after batch, and return its update W_L - W_0."""
    held = dict(model.named_parameters())
    with torch.no_grad():
        for name, p in held.items():
            p.copy_(start[name])
    for i in range(iterations):
        at = i * batch % len(labels)
        step(inputs[at : at + batch], labels[at : at + batch])
    return {name: p.detach() - start[name] for name, p in held.items()}
