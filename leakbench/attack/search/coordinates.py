"""The coordinates of a search: maps between them and inputs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

__all__ = ["Coordinates"]


def _clamped(inputs: Tensor) -> Tensor:
    return inputs.clamp(0, 1)


@dataclass(frozen=True)
class Coordinates:
    """The coordinates z (V, M, d) in which a search moves, for inputs (V, M, *s).

    Args:
        decode: z -> inputs.
        encode: Inputs -> z, the inverse of `decode`.
        energy: z and targets (V, M, classes) -> (V,), added to the distance. Most spaces ignore the targets.
        answer: The inputs at which a search ended -> reconstructions in [0, 1]. By default, they are clamped; a space of tables
            chooses one category of each group, and that of texts the nearest tokens.
        inside: Inputs -> the nearest possible inputs. By default, they are clamped to [0, 1].
        unreached: Names of the parameters whose gradient does not depend on the inputs; it is not compared.
    """

    decode: Callable[[Tensor], Tensor]
    encode: Callable[[Tensor], Tensor]
    energy: Callable[[Tensor, Tensor], Tensor]
    answer: Callable[[Tensor], Tensor] = _clamped
    inside: Callable[[Tensor], Tensor] = _clamped
    unreached: frozenset[str] = frozenset()
