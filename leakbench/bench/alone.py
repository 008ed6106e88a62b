"""The loop of DLG and CPL as their authors wrote it: `torch.optim.LBFGS` on one victim, gradients by autograd."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from leakbench.types import Parameters

__all__ = ["Alone", "search_alone"]


@dataclass(frozen=True)
class Alone:
    """What a search found: inputs (1, *s) of the least distance, unclamped; how often the gradient was evaluated."""

    inputs: Tensor
    evaluations: int


def search_alone(
    model: nn.Module,
    parameters: Parameters,
    truth: Parameters,
    start: Tensor,
    targets: Tensor,
    outer: int,
    lean: bool = False,
) -> Alone:
    """Search one victim's input from `start` (1, *s) with soft labels `targets` (1, classes), `outer` steps at most.

    truth: {p: (*p)}, the gradient that leaked.  Ends as our searches do: when the distance is no longer finite, or when a step
    took one evaluation, after which every further one stays where it is; the authors go on evaluating there.
    lean: leave out the derivatives of the distance by the weights, which the authors' `backward` takes and nobody reads.
    """
    guess = start.clone().requires_grad_()
    optimizer = torch.optim.LBFGS([guess])
    net = copy.deepcopy(model)
    net.load_state_dict({n: p.detach() for n, p in parameters.items()})
    leaked = [truth[name] for name, _ in net.named_parameters()]
    evaluations, before = 0, 0

    def closure() -> Tensor:
        nonlocal evaluations
        evaluations += 1
        optimizer.zero_grad()
        loss = torch.mean(torch.sum(-targets * torch.log_softmax(net(guess), -1), 1))
        gradient = torch.autograd.grad(loss, list(net.parameters()), create_graph=True)
        distance = torch.zeros(())
        for g, t in zip(gradient, leaked, strict=True):
            distance = distance + ((g - t) ** 2).sum()
        distance.backward(inputs=[guess] if lean else None)  # type: ignore[no-untyped-call]
        return distance

    best, least = start, math.inf
    for _ in range(outer):
        here, before = guess.detach().clone(), evaluations
        value = float(optimizer.step(closure).detach())  # type: ignore[no-untyped-call]
        if value < least:
            best, least = here, value
        if not math.isfinite(value) or evaluations == before + 1:
            break
    last = float(closure().detach())
    return Alone(guess.detach().clone() if last < least else best, evaluations)
