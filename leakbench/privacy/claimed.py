"""Slot `claim` of a defense: the paper's own formula for its epsilon."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from leakbench.privacy.ledger import Schedule
from leakbench.privacy.mechanism import Plain

__all__ = ["Claim", "Claimed"]


@dataclass(frozen=True)
class Claimed:
    """A claimed epsilon and its derivation.

    Args:
        epsilon: None without a claim; infinite without noise.
        formula: The derivation, in one line.
        mechanisms: The training that the formula assumes; empty without a claim.
    """

    epsilon: float | None
    formula: str
    mechanisms: Plain = ()


@runtime_checkable
class Claim(Protocol):
    """The slot `claim` of a defense."""

    def __call__(self, schedule: Schedule) -> Claimed:
        """Return the result of the paper's formula for this federation."""
