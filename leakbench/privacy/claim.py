"""What a paper claims: its own formula and parameters, so that its printed epsilon can stand beside the valid one."""

from __future__ import annotations

from typing import Any

from leakbench.part import part
from leakbench.privacy.claimed import Claim, Claimed
from leakbench.privacy.claims_composed import CompositionClaim, MomentsClaim
from leakbench.privacy.claims_printed import FlowerClaim, GeyerClaim, NbaflClaim
from leakbench.privacy.ledger import Schedule

__all__ = [
    "CLAIMS",
    "Claim",
    "Claimed",
    "CompositionClaim",
    "FlowerClaim",
    "GeyerClaim",
    "MomentsClaim",
    "NbaflClaim",
    "NoClaim",
]


@part
class NoClaim:
    """The paper claims no epsilon. reason: the reason, in one sentence."""

    reason: str

    def __call__(self, schedule: Schedule) -> Claimed:
        """Return no epsilon; the formula is `none: <reason>`."""
        return Claimed(None, f"none: {self.reason}")


CLAIMS: dict[str, type[Any]] = {
    "none": NoClaim,
    "moments": MomentsClaim,
    "composition": CompositionClaim,
    "geyer": GeyerClaim,
    "flower": FlowerClaim,
    "nbafl": NbaflClaim,
}
