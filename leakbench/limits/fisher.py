"""The Fisher-information floor: the least average error of an attacker that reconstructs the input of a noisy gradient.

A release f(x) + N(0, std^2 I) of an input x with d features has the Fisher information J^T J / std^2, J = df/dx. Its mean per
feature, I / d = tr(J^T J) / (std^2 d), is the square of Guo et al.'s dFIL (Guo, Karrer, Chaudhuri and van der Maaten, ICML 2022,
arXiv 2201.12383, eq. 4 and Theorem 1). It bounds unbiased attackers, and attackers whose prior of x is a white Gaussian, with
independent features of the same deviation. An attacker that knows more, such as the correlation of neighbouring pixels, may have a
smaller error: `leakbench.limits.fisher_prior` has the floor of a Gaussian with any covariance.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from leakbench.core.errors import InputError
from leakbench.core.types import Parameters
from leakbench.federated.view import View

__all__ = ["fisher_information", "rmse_floor"]

LANES = 32
"""Largest number of probes that are differentiated side by side; fewer if their gradients take more than BUDGET bytes."""

BUDGET = 400_000_000

APART = 2_000_000_000
"""Largest number of bytes of the gradients of all examples, or of all clients, that a defense changes one by one."""


def fisher_information(
    view: View, inputs: Tensor, targets: Tensor, std: float, probes: int, rng: torch.Generator
) -> Tensor:
    """Return (V,), the mean Fisher information per feature of each victim's first example; the attacker knows the others.

    The estimate is unbiased: E |J^T u|^2 = tr(J J^T) = tr(J^T J) for vectors u of random signs (Hutchinson, Communications in
    Statistics 18, 1989).

    Args:
        view: A view with the stations whose deterministic part runs before the noise (`View.stations`).
        inputs: (V, M, *s), the true inputs.
        targets: (V, M, classes), the true labels.
        std: Standard deviation of the noise on every coordinate of the update, in its units, > 0.
        probes: Number of vectors u per victim, >= 1.

    Raises:
        InputError: For a `std` or `probes` outside its range.
    """
    if not std > 0:
        raise InputError(f"std: got {std}, expected a standard deviation > 0")
    if probes < 1:
        raise InputError(f"probes: got {probes}, expected at least 1")
    lanes = torch.arange(len(inputs), device=inputs.device).repeat(probes)
    size = 4 * sum(u[0].numel() for u in view.update.values())
    apart = view.examples if view.stations.example else view.cohort
    side_by_side = max(1, APART // (size * apart))
    squares = []
    for chunk in torch.split(lanes, max(1, min(LANES, BUDGET // size))):
        # The draws are those of the whole chunk, so that a result does not depend on how many gradients fit.
        signs = {name: _signs(u.new_empty(len(chunk), *u.shape[1:]), rng) for name, u in view.update.items()}
        for some in torch.split(torch.arange(len(chunk)), side_by_side):
            at = chunk[some.to(chunk.device)]
            own = {name: sign[some] for name, sign in signs.items()}
            squares.append(_pulled(view, inputs[at], targets[at], at, own))
    return torch.cat(squares).reshape(probes, -1).mean(0) / (std**2 * inputs[0, 0].numel())


def _pulled(view: View, inputs: Tensor, targets: Tensor, lanes: Tensor, signs: Parameters) -> Tensor:
    """Return (n,), |J^T u|^2 with regard to the first example of each of n inputs (n, M, *s), each with its own signs u."""
    with torch.enable_grad():
        first = inputs[:, :1].detach().requires_grad_()
        released = view.respond(torch.cat([first, inputs[:, 1:]], 1), targets, lanes)
        total = torch.stack([(signs[name] * g).sum() for name, g in released.items()]).sum()
        (back,) = torch.autograd.grad(total, first)
    return back.flatten(1).square().sum(1)


def _signs(like: Tensor, rng: torch.Generator) -> Tensor:
    return (2.0 * torch.randint(0, 2, like.shape, generator=rng) - 1.0).to(like)


def rmse_floor(information: float, variance: float = math.inf) -> float:
    """Return the least root mean squared error per feature: (I / d + 1 / variance)^(-1/2).

    The result is infinite without a prior and without information.

    Args:
        information: I / d, >= 0.
        variance: Variance of the attacker's prior, a white Gaussian, > 0 (van Trees' inequality, where the information at x
            replaces its mean under the prior). Infinite for unbiased attackers, whose floor is 1 / dFIL.
    """
    total = information + 1 / variance
    return math.inf if total == 0 else total**-0.5
