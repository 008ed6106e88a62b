"""What a space is to a search: the way from its coordinates to inputs and back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

__all__ = ["Coordinates"]


def _clamped(inputs: Tensor) -> Tensor:
    return inputs.clamp(0, 1)


@dataclass(frozen=True)
class Coordinates:
    """decode: z (V, M, d) -> inputs (V, M, *s).  encode: its inverse.  energy: z and targets (V, M, classes) -> (V,), added to
    the distance; most say the same of every label.

    answer: inputs (V, M, *s) that a search ended at -> those in [0, 1] that are answered; they are clamped unless a space knows
    better, as of categories, of which one must be chosen.
    """

    decode: Callable[[Tensor], Tensor]
    encode: Callable[[Tensor], Tensor]
    energy: Callable[[Tensor, Tensor], Tensor]
    answer: Callable[[Tensor], Tensor] = _clamped
