"""Claims with their own formula: Geyer et al., Flower's documentation, NbAFL."""

from __future__ import annotations

import math
from typing import Annotated, ClassVar

import numpy as np
from pydantic import Field
from pydantic_core import PydanticCustomError

from leakbench.core.part import Count, NonNegative, Positive, Probability, part
from leakbench.privacy.claimed import Claimed
from leakbench.privacy.curve import rounds_within
from leakbench.privacy.decay import least_constant
from leakbench.privacy.ledger import Schedule, Unit
from leakbench.privacy.mechanism import LEAST_NOISE, Mechanism
from leakbench.privacy.pairs import visible_epsilon
from leakbench.privacy.renyi import delta_at, divergences, epsilon_at, without_replacement

__all__ = ["FlowerClaim", "GeyerClaim", "NbaflClaim"]

NO_ROUND = Claimed(None, "none: no round was trained")


@part("claim.geyer")
class GeyerClaim:
    """Delta at a fixed epsilon: Geyer et al. 2017, section 4, stop the training when delta exceeds a threshold.

    The moments accountant with moments 1 to 32 (Rényi orders 2 to 33), q = K_t / N.
    """

    unit: ClassVar[Unit] = "client"

    noise_multiplier: Annotated[
        NonNegative, Field(description="Noise multiplier sigma, which the paper does not print.")
    ]
    epsilon: Annotated[Positive, Field(description="Fixed epsilon, 8 in the paper.")] = 8.0
    delta: Annotated[
        Probability,
        Field(description="Threshold of delta; 1e-3, 1e-5, 1e-6 in the paper for 100, 1000, 10000 clients."),
    ] = 1e-5
    releases: Annotated[
        Count,
        Field(
            description="Number of times that each round is counted; the released code counts it once per weight tensor."
        ),
    ] = 1

    def deltas(self, schedule: Schedule) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        """Return (T,): delta at `epsilon` after each round."""
        orders = range(2, 34)
        one = divergences((Mechanism(self.noise_multiplier, schedule.client_rate, 1),), orders)
        after = self.releases * np.arange(1, schedule.rounds + 1)
        return np.asarray(delta_at(orders, after[:, None] * one, self.epsilon, "old"))

    def __call__(self, schedule: Schedule) -> Claimed:
        """Return `epsilon` if delta stays below the threshold in all rounds, else no epsilon and the round that exceeds it."""
        if schedule.rounds == 0:
            return NO_ROUND
        if self.noise_multiplier < LEAST_NOISE:
            return Claimed(math.inf, f"moments accountant: sigma={self.noise_multiplier:g}")
        curve = self.deltas(schedule)
        fit = rounds_within(curve, self.delta)
        mechanism = Mechanism(self.noise_multiplier, schedule.client_rate, self.releases * schedule.rounds)
        counted = (
            f"q={mechanism.sampling_rate:.6g}, sigma={self.noise_multiplier:g}, {self.releases} release(s) a round"
        )
        if fit < schedule.rounds:
            passed = f"none: delta at epsilon {self.epsilon:g} passes {self.delta:g} in round {fit + 1}"
            return Claimed(None, f"{passed} of {schedule.rounds}: {counted}", (mechanism,))
        formula = f"moments accountant, moments 1 to 32: {counted}, delta={curve[-1]:.3g} <= {self.delta:g}"
        return Claimed(self.epsilon, f"{formula} after {schedule.rounds} rounds", (mechanism,))


@part("claim.flower")
class FlowerClaim:
    """The script in Flower's documentation of its wrappers: sampling without replacement, orders 2 to 32, old conversion.

    q = K_t / N, T rounds. The script bounds the replacement of one client. This moves the sum by up to twice the clip bound, so
    z / 2 would be correct.
    """

    unit: ClassVar[Unit] = "client"

    noise_multiplier: Annotated[
        NonNegative, Field(description="Noise multiplier z, the noise divided by the clip bound.")
    ]
    delta: Annotated[Probability, Field(description="Delta of the claimed epsilon, in (0, 1).")] = 1e-5

    def __call__(self, schedule: Schedule) -> Claimed:
        """Return the epsilon at `delta` for this federation, and no epsilon without a round."""
        if schedule.rounds == 0:
            return NO_ROUND
        mechanism = Mechanism(self.noise_multiplier, schedule.client_rate, schedule.rounds, "fixed")
        formula = (
            f"sampling without replacement, orders 2 to 32, old conversion: q={schedule.client_rate:.6g}, "
            f"z={self.noise_multiplier:g}, {schedule.rounds} steps, delta={self.delta:g}; counts a sensitivity of one "
            "clip, although to replace a client moves the sum by 2"
        )
        if self.noise_multiplier < LEAST_NOISE:
            return Claimed(math.inf, formula, (mechanism,))
        orders = range(2, 33)
        total = schedule.rounds * without_replacement(schedule.client_rate, self.noise_multiplier, orders)
        return Claimed(float(epsilon_at(orders, total, self.delta, "old")), formula, (mechanism,))


@part("claim.nbafl")
class NbaflClaim:
    """The stated epsilon, with noise c L Delta / epsilon on each upload (Wei et al., TIFS 2020, eq. 4; no sampling).

    The theorem requires epsilon / L < 1. The paper assumes Delta = 2 C / m and does not prove it for SGD.
    """

    epsilon: Annotated[Positive, Field(description="Epsilon as the paper states it.")]
    delta: Annotated[Probability, Field(description="Delta as the paper states it, in (0, 1).")] = 0.01
    exposures: Annotated[Count, Field(description="Number L of uploads that the noise is calibrated to.")] = 1
    c: Annotated[
        Positive | None,
        Field(description="Constant of the noise, at least sqrt(2 ln(1.25 / delta)); None for that value."),
    ] = None

    def __post_init__(self) -> None:
        least = least_constant(self.delta)
        if self.c is not None and self.c < least:
            text = f"c: got {self.c:g}, expected at least sqrt(2 ln(1.25 / delta)) = {least:.4g}"
            raise PydanticCustomError("slot", "{text}", {"text": text})

    @property
    def noise_multiplier(self) -> float:
        """Noise of one upload divided by Delta."""
        return (least_constant(self.delta) if self.c is None else self.c) * self.exposures / self.epsilon

    def __call__(self, schedule: Schedule) -> Claimed:
        """Return `epsilon`; the formula also states the epsilon of the analytic Gaussian for one upload and for all T."""
        if schedule.rounds == 0:
            return NO_ROUND
        z = self.noise_multiplier
        one, all_rounds = (visible_epsilon(z, np.eye(1, n + 1, n)[0], self.delta) for n in (1, schedule.rounds))
        formula = (
            f"stated, noise {z:.4g} times the sensitivity, for {self.exposures} exposure(s) at delta={self.delta:g}; "
            f"the analytic Gaussian gives {one:.4g} for one upload and {all_rounds:.4g} for {schedule.rounds}"
        )
        return Claimed(self.epsilon, formula, (Mechanism(z, 1.0, schedule.rounds),))
