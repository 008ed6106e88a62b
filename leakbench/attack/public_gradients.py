"""What examples would have shown in the stead of the victims: candidates to compare with, public examples to learn from."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from leakbench.defense.guess import Surviving, on_a_guess
from leakbench.defense.transform import RunsNetwork, Stations
from leakbench.errors import InputError
from leakbench.federated.leakage import leak
from leakbench.federated.view import Public, View
from leakbench.models import one_hot
from leakbench.types import Parameters

__all__ = ["before_mask", "check_learnable", "fitting", "flat", "gradients_alone", "numbers"]


def gradients_alone(
    view: View, examples: Public, chunk: int = 64, rng: torch.Generator | None = None, draws: Tensor | None = None
) -> Iterator[Tensor]:
    """Yield the gradients (chunk, p) that each example would have shown alone, past the defense as far as the attacker knows it.

    Args:
        chunk: How many are held at once; fewer of a large network.
        rng: Draws the defense's noise, anew for each example; None for the deterministic part alone.
        draws: (k,), what a sampling network is taken to have drawn for each of them.
    """
    tap = "type-0" if view.tap == "global" else view.tap
    like = next(iter(view.network.parameters.values()))
    inputs = examples.inputs.to(like)[:, None, None, None]
    targets = one_hot(examples.labels, view.classes).to(like)[:, None, None, None]
    few = min(chunk, fitting(view, 600_000_000))
    for x, y in zip(torch.split(inputs, few), torch.split(targets, few), strict=True):
        rngs = None if rng is None else (rng,) * len(x)
        with torch.no_grad():  # Not around the yield: who stops in the middle would go on without derivatives.
            told = rngs if draws is None else draws.expand(len(x), 1, 1, -1)
            found = leak(tap, view.network, x, y, view.learning_rate, view.stations, view.clock, rngs, told)
        view.tick()
        yield flat(found)


def before_mask(view: View) -> View | None:
    """Return the view without the defense where comparing the coordinates that were sent is as good and much quicker.

    Soteria chooses the mask of an example by one backward pass for each feature. Its choice for the victim shows in what leaked, so
    that a ranking of single examples needs no mask of a candidate. None for every other defense, and where other transforms act as
    well.
    """
    acting = view.stations.before(view.tap)
    each, masks = acting.transforms, on_a_guess(acting, view.update).transforms
    shown = all(isinstance(t, RunsNetwork) for t in each) and all(isinstance(t, Surviving) for t in masks)
    return replace(view, stations=Stations()) if each and shown and view.examples == 1 else None


def check_learnable(view: View, part: str) -> None:
    """Raise InputError where `part`, which learns once what single examples leak, is to read something else."""
    if view.examples > 1:
        raise InputError(
            f"{part}: it reads what one example leaks, got {view.examples} together (try --taps type-2, or --leak-batch 1)"
        )
    if not view.network.shared:
        raise InputError(f"{part}: it is fitted to one network, got a different network for each victim")


def fitting(view: View, budget: int) -> int:
    """Return how many of the network's gradients fit into `budget` bytes; 4 at least, as two halves of two."""
    return max(4, budget // (4 * numbers(view)))


def numbers(view: View) -> int:
    """Return p, of how many numbers a gradient is made."""
    lanes = 1 if view.network.shared else len(next(iter(view.network.parameters.values())))
    return sum(weights.numel() for weights in view.network.parameters.values()) // lanes


def flat(gradients: Parameters) -> Tensor:
    """Return {p: (n, *p)} as one tensor (n, p)."""
    return torch.cat([g.flatten(1) for g in gradients.values()], 1)
