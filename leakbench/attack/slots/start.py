"""Slot `start`: the first guess of a search."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, ClassVar, Protocol, runtime_checkable

import torch
from pydantic import Field
from torch import Tensor

from leakbench.attack.needs import PLAIN, Needs
from leakbench.core.errors import InputError
from leakbench.core.part import Count, Fraction, NonNegative, part
from leakbench.core.recipe import Slot
from leakbench.core.types import Generators
from leakbench.federated.view import View

__all__ = ["START", "Colour", "Constant", "Normal", "Patterned", "Start", "Uniform"]


@runtime_checkable
class Start(Protocol):
    """Draws the first guess."""

    def __call__(self, view: View, rngs: Generators) -> Tensor:
        """Return inputs (V, M, *s); victim v draws from rngs[v]."""


def _drawn(view: View, rngs: Generators, draw: Callable[[torch.Generator], Tensor]) -> Tensor:
    """Return one draw per example (V, M, *s)."""
    like = view.like
    return torch.stack([torch.stack([draw(rng) for _ in range(view.examples)]) for rng in rngs]).to(like)


@part("start.normal")
class Normal:
    """Draw every value from N(0, 1), unclamped (DLG)."""

    needs: ClassVar[Needs] = Needs(kinds=PLAIN)

    def __call__(self, view: View, rngs: Generators) -> Tensor:
        """Return the first guess."""
        return _drawn(view, rngs, lambda rng: torch.randn(view.shape, generator=rng))


@part("start.uniform")
class Uniform:
    """Draw every value from U(0, 1)."""

    needs: ClassVar[Needs] = Needs(kinds=PLAIN)

    def __call__(self, view: View, rngs: Generators) -> Tensor:
        """Return the first guess."""
        return _drawn(view, rngs, lambda rng: torch.rand(view.shape, generator=rng))


@part("start.patterned")
class Patterned:
    """Repeat one U(0, 1) patch `tile` times along each side (CPL: Wei et al., ESORICS 2020, section 4, patterned start).

    tile = 2 is CPL's default: a patch of a quarter of the image. Tables have one side, their features. If `tile` does not divide a
    side, the pattern is cut off.
    """

    needs: ClassVar[Needs] = Needs(kinds=PLAIN)

    tile: Annotated[Count, Field(description="Number of repetitions along each side.")] = 2

    def __call__(self, view: View, rngs: Generators) -> Tensor:
        """Return the first guess."""
        channels, sides = view.shape[:-2], view.shape[-2:]
        patch = (*channels, *(-(-side // self.tile) for side in sides))
        repeats = (*(1 for _ in channels), *(self.tile for _ in sides))

        def draw(rng: torch.Generator) -> Tensor:
            whole = torch.rand(patch, generator=rng).repeat(repeats)
            return whole[..., : sides[0], : sides[1]] if len(sides) == 2 else whole[: sides[0]]

        return _drawn(view, rngs, draw)


@part("start.constant")
class Constant:
    """Set every value to `value` plus noise of N(0, deviation^2).

    Without noise, all guesses of a batch are equal, and those with the same label stay equal, because nothing distinguishes them.
    """

    needs: ClassVar[Needs] = Needs(kinds=PLAIN)

    value: Annotated[Fraction, Field(description="Value of all pixels or features: 0 is black, 1 is white.")]
    deviation: Annotated[NonNegative, Field(description="Standard deviation of the noise.")] = 0.0

    def __call__(self, view: View, rngs: Generators) -> Tensor:
        """Return the first guess, unclamped."""
        return _drawn(view, rngs, lambda rng: self.value + self.deviation * torch.randn(view.shape, generator=rng))


@part("start.colour")
class Colour:
    """Set one channel to 1 and the others to 0: in RGB images, channel 0 is red, 1 green, 2 blue."""

    needs: ClassVar[Needs] = Needs(kinds=PLAIN)

    channel: Annotated[int, Field(ge=0, description="Channel that is set to 1.")] = 0

    def __call__(self, view: View, rngs: Generators) -> Tensor:
        """Return the first guess; raises InputError if the inputs do not have the channel."""
        if len(view.shape) != 3 or self.channel >= view.shape[0]:
            raise InputError(
                f"start: colour has channel {self.channel}, expected inputs with it, got shape {view.shape}"
            )
        whole = torch.zeros(view.shape)
        whole[self.channel] = 1.0
        return _drawn(view, rngs, lambda rng: whole)


START = Slot("start", ("leakbench.attack.slots", "leakbench.attack.methods.lmmse"))
