"""Separated batches, stored for the searches of one attack."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

__all__ = ["Separation", "Separations"]


@dataclass(frozen=True)
class Separation:
    """The inputs of a layer for each example of one victim's batch.

    Args:
        entered: (M, d), the inputs; NaN if the equations have no solution.
        cotangents: (M, d), the derivatives of the loss with respect to the inputs.
        labels: (M,).
        cut: Whether a time limit ended the search before it had a solution.
    """

    entered: Tensor
    cotangents: Tensor
    labels: Tensor
    cut: bool = False


@dataclass(frozen=True)
class Separations:
    """The separations of one attack, by the victim's update.

    Args:
        every: Whether to store separations that drew random numbers too. A later search then draws fewer numbers and has another
            result; with a time limit, results depend on the machine in any case.
        kept: {hash of a victim's update: its separation}.
    """

    every: bool = False
    kept: dict[str, Separation] = field(default_factory=dict)

    def keep(self, key: str, found: Separation, drew: bool) -> None:
        """Store a separation.

        Args:
            key: Hash of the victim's update.
            found: The separation.
            drew: Whether it drew random numbers.
        """
        if self.every or not drew:
            self.kept[key] = found
