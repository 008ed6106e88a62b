"""What an attacker separated of batches, kept for the searches of one attack."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

__all__ = ["Separation", "Separations"]


@dataclass(frozen=True)
class Separation:
    """What entered a layer for each example of one victim's batch.

    Args:
        entered: (M, d), NaN where the equations are missed.
        cotangents: (M, d).
        labels: (M,).
        cut: Whether a limit on seconds ended the search before it had a solution.
    """

    entered: Tensor
    cotangents: Tensor
    labels: Tensor
    cut: bool = False


@dataclass(frozen=True)
class Separations:
    """The separations of one attack by what leaked of a victim.

    Args:
        every: Whether a separation that drew random numbers is kept too. A search that finds it draws none, so that its own
            numbers are others than without. Under a limit on seconds numbers depend on the machine in any case.
    """

    every: bool = False
    kept: dict[str, Separation] = field(default_factory=dict)

    def keep(self, key: str, found: Separation, drew: bool) -> None:
        """Keep a separation.

        Args:
            drew: Whether it drew random numbers.
        """
        if self.every or not drew:
            self.kept[key] = found
