"""The Fisher-information floor: how close, on average, an attacker can come to the input behind a noisy gradient.

A release f(x) + N(0, std^2 I) of an input x of d features has the Fisher information J^T J / std^2, J = df/dx. Its mean
per feature, I / d = tr(J^T J) / (std^2 d), is the square of Guo et al.'s dFIL (Guo, Karrer, Chaudhuri and van der
Maaten, ICML 2022, arXiv 2201.12383, eq. 4 and Theorem 1). It bounds attackers who are right on average, or whose
knowledge of x is a white Gaussian, each feature of one deviation and by itself; one who knows more may come closer, if only
how neighbouring pixels go together: `leakbench.limits.fisher_prior` has the floor of a Gaussian with any covariance.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from leakbench.errors import InputError
from leakbench.federated.view import View

__all__ = ["fisher_information", "rmse_floor"]

LANES = 32
"""Probes that are pulled back side by side, fewer where their gradients take more than BUDGET bytes; bounds memory."""

BUDGET = 400_000_000


def fisher_information(
    view: View, inputs: Tensor, targets: Tensor, std: float, probes: int, rng: torch.Generator
) -> Tensor:
    """Return (V,): the mean Fisher information per feature of each victim's first example, the others being known.

    Args:
        view: With the stations whose deterministic part acts before the noise (`View.stations`). inputs (V, M, *s) and targets
            (V, M, classes): the truth.
        std: Of the noise on every coordinate of what leaked, in its units, > 0. Estimated without bias by `probes` >= 1 vectors u
            of random signs a victim, pulled back as attacks do it: E |J^T u|^2 = tr(J J^T) = tr(J^T J) (Hutchinson,
            Communications in Statistics 18, 1989).
    """
    if not std > 0:
        raise InputError(f"std: got {std}, expected a standard deviation > 0")
    if probes < 1:
        raise InputError(f"probes: got {probes}, expected at least 1")
    lanes = torch.arange(len(inputs), device=inputs.device).repeat(probes)
    size = 4 * sum(u[0].numel() for u in view.update.values())
    side_by_side = max(1, min(LANES, BUDGET // size))
    chunks = torch.split(lanes, side_by_side)
    squares = torch.cat([_pulled(view, inputs[some], targets[some], some, rng) for some in chunks])
    return squares.reshape(probes, -1).mean(0) / (std**2 * inputs[0, 0].numel())


def _pulled(view: View, inputs: Tensor, targets: Tensor, lanes: Tensor, rng: torch.Generator) -> Tensor:
    """Return (n,): |J^T u|^2 with regard to the first of each of n inputs (n, M, *s), for signs u of their own."""
    with torch.enable_grad():
        first = inputs[:, :1].detach().requires_grad_()
        released = view.respond(torch.cat([first, inputs[:, 1:]], 1), targets, lanes)
        total = torch.stack([(_signs(g, rng) * g).sum() for g in released.values()]).sum()
        (back,) = torch.autograd.grad(total, first)
    return back.flatten(1).square().sum(1)


def _signs(like: Tensor, rng: torch.Generator) -> Tensor:
    return (2.0 * torch.randint(0, 2, like.shape, generator=rng) - 1.0).to(like)


def rmse_floor(information: float, variance: float = math.inf) -> float:
    """Return the least root mean squared error per feature: (I / d + 1 / variance)^(-1/2).

    Args:
        information: I / d, >= 0.
        variance: Of the white Gaussian that is all the attacker knows of x beforehand, > 0 (van Trees' inequality, the
            information at x standing for its mean under the prior); infinite: of attackers who are right on average, and then the
            floor is 1 / dFIL. Infinite where nothing is known and nothing leaks.
    """
    total = information + 1 / variance
    return math.inf if total == 0 else total**-0.5
