"""NbAFL: a client clips the weights that it uploads and adds noise; the server adds the noise that the downlink still needs.

K. Wei et al., "Federated Learning With Differential Privacy: Algorithms and Performance Analysis", IEEE TIFS 2020; equations
are numbered as in Talaei and Izadi (arXiv 2401.02453). Letters: N clients with m examples each, T rounds, L exposures of a
client's upload, clip C, and c >= sqrt(2 ln(1.25 / delta)).
"""

from __future__ import annotations

import math
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from pydantic_core import PydanticCustomError

from leakbench.core.errors import InputError
from leakbench.core.part import Bound, Count, Positive, Probability, part
from leakbench.core.recipe import nested
from leakbench.core.rng import normal
from leakbench.core.types import Clock, Fact, Generators, Parameters, Signal
from leakbench.defense.by_norm import clip_factor, scaled
from leakbench.engine.rows import length
from leakbench.privacy.decay import least_constant

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
    """Return the weights that the server sent, {p: (1 or lanes, 1, *p)}.

    Raises:
        InputError: If the signal has none, as at the server.
    """
    if signal.local is None:
        raise InputError("the weights that the server sent are not at hand; only a client can clip what it uploads")
    network = signal.local.network
    return {n: network.parameters[n].unsqueeze(0 if network.shared else 1) for n in signal.grads}


def clip_weights(signal: Signal, norm: float) -> Signal:
    """Scale each client's weights w = sent + update so that their L2 norm over all parameters is at most `norm`.

    The new update is the scaled weights minus the sent ones, and `sensitivity` becomes `norm`. Two uploads differ by at most
    2 * norm for any training data; this is the bound in the fact. It bounds no update: where the sent weights are longer than
    `norm`, as after much noise, an update may be longer than 2 * norm. An update that is not finite counts as zero.
    """
    sent, signal = sent_weights(signal), signal.finite()
    weights = [(g + sent[n]).flatten(2) for n, g in signal.grads.items()]
    norms = torch.stack([w.square().sum(2) for w in weights]).sum(0).sqrt()
    if not bool(norms.isfinite().all()):
        norms = norms.where(norms.isfinite(), length(torch.stack([length(w, 2) for w in weights]), 0))
    factor = clip_factor(norms, norm)
    # f (sent + g) - sent, written so that an update with f = 1 stays bit-identical.
    grads = {n: scaled(g, factor) + scaled(sent[n].expand_as(g), factor - 1) for n, g in signal.grads.items()}
    fact = Fact("clip", norm=2 * norm, rescales=True, replaced=True)
    return signal.replace(grads, norms.new_full((signal.lanes,), norm), fact)


@part("calibration")
class Calibration:
    """The numbers from which NbAFL derives its noise."""

    norm: Annotated[Bound, Field(description="Clip bound C of a client's weights.")]
    epsilon: Annotated[Positive, Field(description="Epsilon claimed for one exposure.")]
    delta: Annotated[Probability, Field(description="Delta claimed for one exposure.")] = 0.01
    constant: Annotated[
        Positive | None,
        Field(description="Constant c of the noise; None for the least allowed one, sqrt(2 ln(1.25 / delta))."),
    ] = None
    exposures: Annotated[
        Count | None, Field(description="Number of exposures L, at most the number of rounds T; None for T.")
    ] = None
    sensitivity: Annotated[
        Literal["averaged", "whole"],
        Field(
            description=(
                "`averaged`: Ds = 2 C / m, as if the weights were an average over the m examples (the paper). `whole`: Ds = 2 C, "
                "the largest change of clipped weights by one example after several steps of SGD."
            )
        ),
    ] = "averaged"

    def __post_init__(self) -> None:
        least = least_constant(self.delta)
        if self.constant is not None and self.constant < least:
            text = f"constant: got {self.constant}, expected at least sqrt(2 ln(1.25 / delta)) = {least:.6g}"
            raise PydanticCustomError("slot", "{text}", {"text": text})

    @property
    def c(self) -> float:
        """The constant c of the noise."""
        return least_constant(self.delta) if self.constant is None else self.constant

    def exposed(self, clock: Clock) -> int:
        """Return L; 1 for a leak without training."""
        return min(self.exposures or clock.rounds, clock.rounds) or 1

    def examples(self, clock: Clock) -> int:
        """Return the divisor of 2 C: m, or 1."""
        return clock.examples_per_client if self.sensitivity == "averaged" else 1

    def uplink(self, clock: Clock, epsilon: float) -> float:
        """Return sigma_U for an epsilon, which may differ from `self.epsilon`."""
        return uplink_std(self.c, self.exposed(clock), 2 * self.norm / self.examples(clock), epsilon)


Calibrated = Annotated[
    Calibration, nested(Calibration), Field(description="The numbers from which NbAFL derives its noise.")
]


@part("transform.nbafl_uplink")
class NbaflUplink:
    """Clip the L2 norm of a client's uploaded weights to C, and add noise of sigma_U (eq. 4) to each weight. Client station.

    This follows the paper's text. FederatedScope's NbAFL limits each single weight to [-C, C], which bounds d weights only by
    2 C sqrt(d).
    """

    stations: ClassVar[tuple[str, ...]] = ("client",)

    calibration: Calibrated

    def __call__(self, signal: Signal, clock: Clock, rngs: Generators | None) -> Signal:
        """Clip, and add noise from each client's own generator."""
        clipped = clip_weights(signal, self.calibration.norm)
        std = self.calibration.uplink(clock, self.calibration.epsilon)
        grads = {n: g + normal(g, rngs, g.shape[1]) * std for n, g in clipped.grads.items()}
        return clipped.replace(grads, clipped.sensitivity, Fact("noise", std=std, each=True))


@part("transform.nbafl_downlink")
class NbaflDownlink:
    """Add noise of sigma_D (eq. 5) to the mean of the uploads if their own noise is smaller. Server station."""

    stations: ClassVar[tuple[str, ...]] = ("server",)

    calibration: Calibrated

    def __call__(self, signal: Signal, clock: Clock, rngs: Generators | None) -> Signal:
        """Add one noise to all members, of sigma_D * K_t on the sum over K_t clients; 0 if T <= L sqrt(N)."""
        k = self.calibration
        std = clock.cohort * downlink_std(
            k.c, k.exposed(clock), k.norm, k.epsilon, clock.rounds, clock.clients, k.examples(clock)
        )
        share: float = std / signal.members
        grads = {n: g + normal(g, rngs, 1) * share for n, g in signal.grads.items()}
        return signal.replace(grads, signal.sensitivity, Fact("noise", std=std))
