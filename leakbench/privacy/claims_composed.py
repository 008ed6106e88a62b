"""Claims that compose one noisy sum per step, by the moments accountant or an older composition theorem."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from pydantic import Field

from leakbench.core.part import Count, Probability, part
from leakbench.core.types import Clock
from leakbench.privacy.accountants import ACCOUNTANTS
from leakbench.privacy.claimed import Claimed
from leakbench.privacy.curve import composition_curve
from leakbench.privacy.decay import Decay, Multiplier
from leakbench.privacy.ledger import Schedule, Unit
from leakbench.privacy.mechanism import Mechanism, Mechanisms, Plain, merged

__all__ = ["CompositionClaim", "MomentsClaim", "sequence"]

ACCOUNTANT_TITLES = {
    "moments_2017": "moments accountant (Abadi et al. 2016), old conversion",
    "rdp": "Rényi accountant, tight conversion",
    "pld": "privacy loss distributions",
}

COMPOSITION_TITLES = {
    "basic": "base composition",
    "advanced": "advanced composition",
    "advanced_2015": "advanced composition, the released script's",
    "zcdp": "zCDP with rho = q^2 / sigma^2, a heuristic",
}


def sequence(unit: Unit, noise_multiplier: float | Decay, schedule: Schedule, extra_rounds: int = 0) -> Plain:
    """Return the training that a paper assumes: Poisson samples with one noisy sum each, in order.

    Args:
        unit: `example`: q = B / |D_i|, L * T steps (Wei et al., TPDS 2023, Table 6: .01 in all five data sets, although their
            section 6 says B * K_t / |D|); `client`: q = K_t / N, T steps.
        extra_rounds: Number of rounds to add to T, with the noise of the last round.
    """
    rounds = max(0, schedule.rounds + extra_rounds)
    rate = schedule.example_rate if unit == "example" else schedule.client_rate
    iterations = schedule.local_iterations if unit == "example" else 1
    if not callable(noise_multiplier):
        return (Mechanism(noise_multiplier, rate, iterations * rounds),)
    last = schedule.rounds - 1
    clocks = (Clock(min(t, last), i, schedule.rounds, iterations) for t in range(rounds) for i in range(iterations))
    return merged(Mechanism(noise_multiplier(clock), rate, 1) for clock in clocks)


def numbers(mechanisms: Mechanisms) -> str:
    """Return q, sigma and the number of steps of a claim as text."""
    levels = [m.noise_multiplier for m in mechanisms]
    sigma = f"{levels[0]:g}" if min(levels) == max(levels) else f"{max(levels):.4g} to {min(levels):.4g}"
    return f"q={mechanisms[0].sampling_rate:.6g}, sigma={sigma}, {sum(m.steps for m in mechanisms)} steps"


ClaimUnit: TypeAlias = Annotated[
    Literal["example", "client"],
    Field(description="Unit of the claim: `example` (q = B / |D_i|, L * T steps) or `client` (q = K_t / N, T steps)."),
]
ClaimNoise: TypeAlias = Annotated[
    Multiplier,
    Field(description="The paper's noise multiplier sigma: a number >= 0, or a schedule (`leakbench.privacy.decay`)."),
]


@part("claim.moments")
class MomentsClaim:
    """The subsampled Gaussian mechanism as papers account for it, even if the federation differs from it."""

    unit: ClaimUnit
    noise_multiplier: ClaimNoise
    delta: Annotated[Probability, Field(description="Delta of the claimed epsilon, in (0, 1).")] = 1e-5
    accountant: Annotated[
        Literal["moments_2017", "rdp", "pld"],
        Field(description="Accountant of the paper: `moments_2017`, `rdp` or `pld`."),
    ] = "moments_2017"
    extra_rounds: Annotated[
        int, Field(description="Number of rounds to add to T; the printed Fed-SDP values are those of T + 1.")
    ] = 0

    def __call__(self, schedule: Schedule) -> Claimed:
        """Return the epsilon at `delta` for this federation, and no epsilon without a round."""
        if schedule.rounds == 0:
            return Claimed(None, "none: no round was trained")
        mechanisms = sequence(self.unit, self.noise_multiplier, schedule, self.extra_rounds)
        epsilon = ACCOUNTANTS[self.accountant](mechanisms, self.delta)
        formula = f"{ACCOUNTANT_TITLES[self.accountant]}: {numbers(mechanisms)}, delta={self.delta:g}"
        return Claimed(epsilon, formula, mechanisms)


@part("claim.composition")
class CompositionClaim:
    """The composition theorems that Wei et al., TPDS 2023, Table 11, compares with the moments accountant.

    The printed budget of advanced composition follows from `advanced`, but the printed numbers of rounds follow from
    `advanced_2015` with that budget.
    """

    unit: ClaimUnit
    composition: Annotated[
        Literal["basic", "advanced", "advanced_2015", "zcdp"],
        Field(description="Theorem of the paper: `basic`, `advanced`, `advanced_2015` or `zcdp`."),
    ]
    noise_multiplier: ClaimNoise
    delta: Annotated[Probability, Field(description="Delta of one step, in (0, 1).")] = 1e-5
    digits: Annotated[
        Count | None,
        Field(
            description=(
                "Number of digits to which one step's epsilon is rounded, None for all. The printed 123.354 and 7.450 follow "
                "from 3 digits (.807), not from .80747."
            )
        ),
    ] = None

    def __call__(self, schedule: Schedule) -> Claimed:
        """Return the epsilon as the paper prints it, with its actual total delta, and no epsilon without a round."""
        if schedule.rounds == 0:
            return Claimed(None, "none: no round was trained")
        mechanisms = sequence(self.unit, self.noise_multiplier, schedule)
        curve = composition_curve(self.composition, mechanisms, self.delta, self.digits)
        formula = f"{COMPOSITION_TITLES[self.composition]}: {numbers(mechanisms)}, delta={self.delta:g}"
        if self.composition != "zcdp":
            failures = sum(m.steps * m.sampling_rate for m in mechanisms)
            total = self.delta * (failures if self.composition == "basic" else failures + 1)
            formula += f" of each step, {total:.3g} in total"
        return Claimed(float(curve[-1]), formula, mechanisms)
