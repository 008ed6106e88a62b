"""The claim of a paper: its formula and parameters, to compare its printed epsilon with the valid one."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from leakbench.core.part import part
from leakbench.core.recipe import Slot
from leakbench.privacy.claimed import Claim, Claimed
from leakbench.privacy.claims_composed import CompositionClaim, MomentsClaim
from leakbench.privacy.claims_printed import FlowerClaim, GeyerClaim, NbaflClaim
from leakbench.privacy.ledger import Schedule

__all__ = [
    "CLAIM",
    "Claim",
    "Claimed",
    "CompositionClaim",
    "FlowerClaim",
    "GeyerClaim",
    "MomentsClaim",
    "NbaflClaim",
    "NoClaim",
]


@part("claim.none")
class NoClaim:
    """The paper claims no epsilon."""

    reason: Annotated[str, Field(description="The reason, in one sentence.")]

    def __call__(self, schedule: Schedule) -> Claimed:
        """Return no epsilon; the formula is `none: <reason>`."""
        return Claimed(None, f"none: {self.reason}")


CLAIM = Slot("claim", tuple(f"leakbench.privacy.{module}" for module in ("claim", "claims_composed", "claims_printed")))
