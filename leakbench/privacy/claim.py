"""What a paper claims: its own formula and parameters, so that its printed epsilon can stand beside the valid one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, Protocol, runtime_checkable

from leakbench.privacy.accountants import ACCOUNTANTS, Mechanism
from leakbench.privacy.ledger import Schedule
from leakbench.types import NonNegative, Probability, part

__all__ = ["CLAIMS", "Claim", "Claimed", "MomentsClaim", "NoClaim"]

ACCOUNTANT_TITLES = {
    "moments_2017": "moments accountant (Abadi et al. 2016), old conversion",
    "rdp": "Rényi accountant, tight conversion",
    "pld": "privacy loss distributions",
}


@dataclass(frozen=True)
class Claimed:
    """A claimed epsilon (None where there is none, infinite without noise) and how it comes about, in one line."""

    epsilon: float | None
    formula: str


@runtime_checkable
class Claim(Protocol):
    """The slot `claim` of a defense."""

    def __call__(self, schedule: Schedule) -> Claimed:
        """Return what the paper's formula gives for this federation."""


@part
class NoClaim:
    """The paper claims no epsilon. reason: why, one sentence."""

    reason: str

    def __call__(self, schedule: Schedule) -> Claimed:
        """Return no epsilon; the formula is `none: <reason>`."""
        return Claimed(None, f"none: {self.reason}")


@part
class MomentsClaim:
    """The subsampled Gaussian mechanism as papers of the field account for it, whatever the federation really does.

    unit: `example`: q = B / |D_i|, L * T steps (Wei et al., TPDS 2023, Table 6: .01 in all five data sets, although
        their section 6 says B * K_t / |D|); `client`: q = K_t / N, T + extra_rounds steps.
    noise_multiplier: the paper's sigma. delta: in (0, 1). accountant: `moments_2017` | `rdp` | `pld`.
    extra_rounds: rounds counted beyond T; the printed Fed-SDP values are those of T + 1.
    """

    unit: Literal["example", "client"]
    noise_multiplier: NonNegative
    delta: Probability = 1e-5
    accountant: Literal["moments_2017", "rdp", "pld"] = "moments_2017"
    extra_rounds: int = 0

    def __call__(self, schedule: Schedule) -> Claimed:
        """Return the epsilon at `delta` for this federation; none where no round was trained."""
        if schedule.rounds == 0:
            return Claimed(None, "none: no round was trained")
        if self.unit == "example":
            q, steps = schedule.example_rate, schedule.local_iterations * schedule.rounds
        else:
            q, steps = schedule.client_rate, max(0, schedule.rounds + self.extra_rounds)
        epsilon = ACCOUNTANTS[self.accountant](Mechanism(self.noise_multiplier, q, steps), self.delta)
        numbers = f"q={q:.6g}, sigma={self.noise_multiplier:g}, {steps} steps, delta={self.delta:g}"
        return Claimed(epsilon, f"{ACCOUNTANT_TITLES[self.accountant]}: {numbers}")


CLAIMS: dict[str, type[Any]] = {"none": NoClaim, "moments": MomentsClaim}
