"""NbAFL: a client clips the weights that it uploads and adds noise; the server adds what the downlink still lacks.

K. Wei et al., "Federated Learning With Differential Privacy: Algorithms and Performance Analysis", IEEE TIFS 2020; equations
are numbered as in Talaei and Izadi (arXiv 2401.02453), who build on it. Letters: N clients of m examples, T rounds, L exposures
of a client's upload, clip C, and c >= sqrt(2 ln(1.25 / delta)).
"""

from __future__ import annotations

import math
from typing import Annotated, Literal

import torch
from pydantic_core import PydanticCustomError

from leakbench.decay import least_constant
from leakbench.defense.by_norm import clip_factor, scaled
from leakbench.errors import InputError
from leakbench.lengths import length
from leakbench.nested import nested
from leakbench.part import Bound, Count, Positive, Probability, part
from leakbench.rng import normal
from leakbench.types import Clock, Fact, Generators, Parameters, Signal

__all__ = [
    "Calibrated",
    "Calibration",
    "NbaflDownlink",
    "NbaflUplink",
    "clip_weights",
    "downlink_std",
    "sent_weights",
    "uplink_std",
]


def uplink_std(constant: float, exposures: int, sensitivity: float, epsilon: float) -> float:
    """Return sigma_U = c L Ds / epsilon (eq. 4), the standard deviation of the noise on every weight that a client uploads."""
    return constant * exposures * sensitivity / epsilon


def downlink_std(
    constant: float, exposures: int, norm: float, epsilon: float, rounds: int, clients: int, examples: int
) -> float:
    """Return sigma_D = 2 c C sqrt(T^2 - L^2 N) / (m N epsilon) if T > L sqrt(N), else 0 (eq. 5), on the mean of the uploads."""
    lacking = rounds**2 - exposures**2 * clients
    return 2 * constant * norm * math.sqrt(max(lacking, 0)) / (examples * clients * epsilon)


def sent_weights(signal: Signal) -> Parameters:
    """Return the weights that the server sent, {p: (1 or lanes, 1, *p)}; raise InputError where the signal knows of none."""
    if signal.local is None:
        raise InputError("the weights that the server sent are not at hand; only a client can clip what it uploads")
    network = signal.local.network
    return {n: network.parameters[n].unsqueeze(0 if network.shared else 1) for n in signal.grads}


def clip_weights(signal: Signal, norm: float) -> Signal:
    """Scale each client's weights w = sent + update so that their L2 norm over all parameters is at most `norm`.

    The update becomes what that leaves of it, and `sensitivity` becomes `norm`. Whatever a client trained on, two uploads differ
    by at most 2 * norm, which is the bound that the ledger is told.
    """
    sent = sent_weights(signal)
    weights = [(g + sent[n]).flatten(2) for n, g in signal.grads.items()]
    found = torch.stack([w.square().sum(2) for w in weights]).sum(0).sqrt()
    if not bool(found.isfinite().all()):
        found = found.where(found.isfinite(), length(torch.stack([length(w, 2) for w in weights]), 0))
    factor = clip_factor(found, norm)
    # f (sent + g) - sent; where f is 1 the update keeps its bits.
    grads = {n: scaled(g, factor) + scaled(sent[n].expand_as(g), factor - 1) for n, g in signal.grads.items()}
    return signal.replace(grads, found.new_full((signal.lanes,), norm), Fact("clip", norm=2 * norm, rescales=True))


@part("calibration")
class Calibration:
    """The numbers from which NbAFL derives its noise.

    Args:
        norm: C.
        epsilon: Claimed for one exposure.
        delta: Claimed for one exposure.
        constant: c; None for the least that is allowed.
        exposures: L, at most T; None for T.
        sensitivity: `averaged`: Ds = 2 C / m, as if the weights were an average over the m examples (the paper); `whole`: 2 C,
            the distance that one example can really move clipped weights that come from several steps of SGD.
    """

    norm: Bound
    epsilon: Positive
    delta: Probability = 0.01
    constant: Positive | None = None
    exposures: Count | None = None
    sensitivity: Literal["averaged", "whole"] = "averaged"

    def __post_init__(self) -> None:
        least = least_constant(self.delta)
        if self.constant is not None and self.constant < least:
            text = f"constant: got {self.constant}, expected at least sqrt(2 ln(1.25 / delta)) = {least:.6g}"
            raise PydanticCustomError("slot", "{text}", {"text": text})

    @property
    def c(self) -> float:
        """The constant, stated or least."""
        return least_constant(self.delta) if self.constant is None else self.constant

    def exposed(self, clock: Clock) -> int:
        """Return L. A leak where nothing is trained is one exposure."""
        return min(self.exposures or clock.rounds, clock.rounds) or 1

    def examples(self, clock: Clock) -> int:
        """Return what 2 C is divided by: m, or 1."""
        return clock.examples_per_client if self.sensitivity == "averaged" else 1

    def uplink(self, clock: Clock, epsilon: float) -> float:
        """Return sigma_U at another epsilon and otherwise these numbers."""
        return uplink_std(self.c, self.exposed(clock), 2 * self.norm / self.examples(clock), epsilon)


Calibrated = Annotated[Calibration, nested(Calibration)]


@part("transform.nbafl_uplink")
class NbaflUplink:
    """Clip the weights that a client uploads at C by their norm, and add noise of sigma_U (eq. 4) to each. Client station.

    By the text; FederatedScope's NbAFL limits every weight by itself to [-C, C], which bounds a client of d weights by
    2 C sqrt(d) only.
    """

    calibration: Calibrated

    def __call__(self, signal: Signal, clock: Clock, rngs: Generators | None) -> Signal:
        """Clip and add noise, drawn by each client."""
        clipped = clip_weights(signal, self.calibration.norm)
        std = self.calibration.uplink(clock, self.calibration.epsilon)
        grads = {n: g + normal(g, rngs, g.shape[1]) * std for n, g in clipped.grads.items()}
        return clipped.replace(grads, clipped.sensitivity, Fact("noise", std=std, each=True))


@part("transform.nbafl_downlink")
class NbaflDownlink:
    """Add noise of sigma_D (eq. 5) to the mean of the uploads, where their own noise is less than that. Server station."""

    calibration: Calibrated

    def __call__(self, signal: Signal, clock: Clock, rngs: Generators | None) -> Signal:
        """Add one noise for all members, which on the sum over K_t has sigma_D * K_t; none if T <= L sqrt(N)."""
        k = self.calibration
        std = clock.cohort * downlink_std(
            k.c, k.exposed(clock), k.norm, k.epsilon, clock.rounds, clock.clients, k.examples(clock)
        )
        share: float = std / signal.members
        grads = {n: g + normal(g, rngs, 1) * share for n, g in signal.grads.items()}
        return signal.replace(grads, signal.sensitivity, Fact("noise", std=std))
