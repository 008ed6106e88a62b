"""In which numbers an update was computed: those of half precision round by parts of a hundred, which no attack undoes."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice

import torch
from torch import Tensor

from leakbench.federated.view import View
from leakbench.types import Parameters

__all__ = ["Rounded", "lengths", "rounded"]

HALVES = {"bfloat16": torch.bfloat16, "float16": torch.float16}

TOLD_BY = 16
"""Of how many different numbers it is told; signs, or a few levels, are numbers of any type."""

SINGLE = "float32"


@dataclass(frozen=True)
class Rounded:
    """What rounding explains.

    Args:
        name: Of the type whose numbers all are.
        unit: Half the distance of 1 to the next number, by which each is off at most. share (V,): by how much of its length
            rounding changes an update at most.
    """

    name: str
    unit: float
    share: Tensor

    @property
    def half(self) -> bool:
        """Whether the numbers are of half precision."""
        return self.name != SINGLE


def rounded(view: View) -> Rounded:
    """Return what rounding explains of V updates: of a gradient its own, of a difference of weights that of the weights."""
    of_gradient = view.knowledge.reads == "gradient"
    name = _type(view.update if of_gradient else view.network.parameters)
    unit = torch.finfo(HALVES.get(name, torch.float32)).eps / 2
    if of_gradient:
        return Rounded(name, unit, torch.full((view.victims,), unit, dtype=torch.float64))
    parameters = view.network.parameters
    each = {n: p[None] for n, p in parameters.items()} if view.network.shared else parameters
    added = lengths(view.update) * view.learning_rate * view.local_steps
    # Every step rounds, in either direction.
    return Rounded(name, unit, unit * lengths(each) * view.local_steps**0.5 / added)


def lengths(update: Parameters) -> Tensor:
    """Return the lengths (V,) of updates {p: (V, *p)}, in double precision, in which no square of a float32 overflows."""
    squares = [u.flatten(1).double().square().sum(1) for u in update.values()]
    return torch.stack(squares).sum(0).sqrt()


def _type(tensors: Parameters) -> str:
    """Return the name of the coarsest type that has all of the numbers."""
    for name, dtype in HALVES.items():
        if all(bool(torch.equal(t, t.to(dtype).to(t.dtype))) for t in tensors.values()):
            several = {abs(number) for t in islice(tensors.values(), 16) for number in t.flatten()[:1024].tolist()}
            return name if len(several) >= TOLD_BY else SINGLE
    return SINGLE
