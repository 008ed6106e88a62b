"""What a claim is: the slot of a defense in which a paper's own formula stands."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from leakbench.privacy.ledger import Schedule
from leakbench.privacy.mechanism import Plain

__all__ = ["Claim", "Claimed"]


@dataclass(frozen=True)
class Claimed:
    """A claimed epsilon (None where there is none, infinite without noise) and how it comes about, in one line.

    Args:
        mechanisms: What the formula takes the training to be; empty where nothing is claimed.
    """

    epsilon: float | None
    formula: str
    mechanisms: Plain = ()


@runtime_checkable
class Claim(Protocol):
    """The slot `claim` of a defense."""

    def __call__(self, schedule: Schedule) -> Claimed:
        """Return what the paper's formula gives for this federation."""
