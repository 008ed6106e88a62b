"""Slot `start`: the first guess of a search."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from leakbench.attack.space_tables import layout_of, soften
from leakbench.federated.leakage import View
from leakbench.types import Count, Generators, part

__all__ = ["STARTS", "Normal", "Patterned", "Standard", "Start", "Uniform"]


@runtime_checkable
class Start(Protocol):
    """Draws the first guess."""

    def __call__(self, view: View, rngs: Generators) -> Tensor:
        """Return inputs (V, M, *s); victim v draws from rngs[v]."""


def _drawn(view: View, rngs: Generators, draw: Callable[[torch.Generator], Tensor]) -> Tensor:
    like = next(iter(view.update.values()))
    return torch.stack([torch.stack([draw(rng) for _ in range(view.examples)]) for rng in rngs]).to(like)


@part
class Normal:
    """Every value from N(0, 1), unclamped (DLG)."""

    def __call__(self, view: View, rngs: Generators) -> Tensor:
        """Return the first guess."""
        return _drawn(view, rngs, lambda rng: torch.randn(view.shape, generator=rng))


@part
class Uniform:
    """Every value from U(0, 1)."""

    def __call__(self, view: View, rngs: Generators) -> Tensor:
        """Return the first guess."""
        return _drawn(view, rngs, lambda rng: torch.rand(view.shape, generator=rng))


@part
class Patterned:
    """One U(0, 1) patch, repeated `tile` times along each side (CPL: Wei et al., ESORICS 2020, section 4, patterned start).

    tile = 2 is CPL's default, a patch of a quarter of the picture. Tables have one side, their features; a side that `tile` does
    not divide is cut from the next larger multiple.
    """

    tile: Count = 2

    def __call__(self, view: View, rngs: Generators) -> Tensor:
        """Return the first guess."""
        channels, sides = view.shape[:-2], view.shape[-2:]
        patch = (*channels, *(-(-side // self.tile) for side in sides))
        repeats = (*(1 for _ in channels), *(self.tile for _ in sides))

        def draw(rng: torch.Generator) -> Tensor:
            whole = torch.rand(patch, generator=rng).repeat(repeats)
            return whole[..., : sides[0], : sides[1]] if len(sides) == 2 else whole[: sides[0]]

        return _drawn(view, rngs, draw)


@part
class Standard:
    """Every column of a table from U(-1, 1) in its standard deviations about its mean (TabLeak's released code, `uniform`).

    soft: those values as the logits and bounded numbers of the space `soft_categories` with its defaults, where TabLeak starts;
    else the records themselves, where its Inverting Gradients starts. Raises InputError where the inputs are no table.
    """

    soft: bool = False

    def __call__(self, view: View, rngs: Generators) -> Tensor:
        """Return the first guess."""
        columns = layout_of(view, "standard")
        z = _drawn(view, rngs, lambda rng: 2 * torch.rand(view.shape, generator=rng) - 1)
        return soften(z, columns, 1.0, "sigmoid") if self.soft else columns.mean.to(z) + columns.deviation.to(z) * z


STARTS: dict[str, type[Start]] = {"normal": Normal, "uniform": Uniform, "patterned": Patterned, "standard": Standard}
