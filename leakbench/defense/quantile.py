"""A clip bound that follows a quantile of the norms (Andrew et al., NeurIPS 2021): clip and count, add noise, adapt.

The memory has two entries: `clip_bound` is the current bound C; `within_bound` is the sum of the votes on it, until the next
`adapt_clip`. A member votes +1/2 if its norm is at most C, -1/2 if it is clipped, and 0 if it is absent. One member changes the
sum by at most 1/2, which gives the factor 2 s_b below.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Annotated, ClassVar, Literal, TypeAlias

import torch
from pydantic import Field
from torch import Tensor

from leakbench.core.errors import InputError
from leakbench.core.part import Bound, NonNegative, Positive, Probability, part
from leakbench.core.rng import normal
from leakbench.core.types import Clock, Fact, Generators, Signal
from leakbench.defense.by_norm import clip_factor, finite_norms, scaled
from leakbench.defense.noise import GaussianNoise
from leakbench.defense.share import ShareOfNoise
from leakbench.engine.rows import length

__all__ = ["AdaptClip", "ClipQuantile", "QuantileNoise", "QuantileNoiseReleased", "value_multiplier"]

LEAST, MOST = 1e-15, 1e30
"""Range of the bound, in which single precision can clip."""

BOUND, VOTES = "clip_bound", "within_bound"

Target: TypeAlias = Annotated[
    Probability, Field(description="Share of members whose norm is to be at most C, in (0, 1).")
]
LearningRate: TypeAlias = Annotated[Positive, Field(description="Step of the logarithm of C.")]

BARE = Fact(
    "scale",
    reason="data-dependent sensitivity: the clip bound follows the private norms, and the count behind it has no noise",
    raw=True,
)


@part("transform.clip_quantile")
class ClipQuantile:
    """Scale each member so that its whole L2 norm is at most the current bound C, and count the members within it.

    Andrew et al., Algorithm 1: b_i = 1[norm <= C]. Without noise on the count (`quantile_noise`), C depends on the private norms,
    and no epsilon follows.
    """

    stateful: ClassVar[bool] = True

    initial: Annotated[Bound, Field(description="Bound C at the first use.")]

    def __call__(self, signal: Signal, clock: Clock, rngs: Generators | None) -> Signal:
        """Clip; `sensitivity` becomes C, and the memory gets the sum of the votes, (lanes, 1), for `adapt_clip`."""
        signal, each = finite_norms(signal)
        norms = length(torch.stack(list(each.values())), 0)
        bound = signal.memory.get(BOUND, norms.new_full((signal.lanes, 1), self.initial))
        factor = clip_factor(norms, bound)
        grads = {n: scaled(g, factor) for n, g in signal.grads.items()}
        # Padding of a batch, the update of an empty cohort and members that are not finite are exactly zero and do not vote.
        votes = ((norms <= bound).to(norms) - 0.5) * (norms > 0)
        clipped = signal.replace(grads, bound[:, 0], Fact("clip", norm=float(bound.max()), rescales=True))
        counted = clipped.remembering(BOUND, bound).remembering(VOTES, votes.sum(1, keepdim=True))
        return dataclasses.replace(counted, facts=(*counted.facts, BARE))


@part("transform.adapt_clip")
class AdaptClip:
    """Update the bound for the next use: C <- C exp(-learning_rate (b - target)), where b is the share of members within C.

    Andrew et al., Algorithm 1, the geometric update, with b = 1/2 + (sum of votes) / m and C limited to [1e-15, 1e30]. At the
    `batch` station, m is the expected size B of a batch; at the `server` station, it is the size K_t of a cohort.
    """

    target: Target = 0.5
    learning_rate: LearningRate = 0.2

    def __call__(self, signal: Signal, clock: Clock, rngs: Generators | None) -> Signal:
        """Update the memory; the gradients stay. Raises InputError without a clip_quantile before this part."""
        share = 0.5 + _votes(signal, "adapt_clip") / _voters(signal, clock)
        before = signal.memory[BOUND].mean(1, keepdim=True)
        after = (before * torch.exp(-self.learning_rate * (share - self.target))).clamp(LEAST, MOST)
        others = {name: m for name, m in signal.memory.items() if name != VOTES}
        return dataclasses.replace(signal, memory={**others, BOUND: after})


@part("transform.quantile_noise")
class QuantileNoise:
    """Add noise to the values and to the count, such that both together have the noise multiplier z.

    Andrew et al., Theorem 1: the count gets noise of s_b, the values get noise of z_delta C with
    z_delta = (z^-2 - (2 s_b)^-2)^(-1/2).
    """

    multiplier: Annotated[
        NonNegative, Field(description="Noise multiplier z of values and count together, below 2 s_b.")
    ]
    to: Annotated[
        Literal["sum", "share"],
        Field(
            description=(
                "`sum`: one noise for the sum, at the `batch` or `server` station. `share`: each of m clients adds 1 / sqrt(m) of "
                "both noises, so that no vote leaves a client without noise."
            )
        ),
    ]
    count_std: Annotated[
        Positive | None,
        Field(
            description="Standard deviation s_b of the count's noise; None is m / 20, as in TensorFlow Federated and Flower."
        ),
    ] = None

    @property
    def stations(self) -> tuple[str, ...]:
        """The client station for shares, the batch or server station for the sum."""
        return ("client",) if self.to == "share" else ("batch", "server")

    def __call__(self, signal: Signal, clock: Clock, rngs: Generators | None) -> Signal:
        """Add both noises; the facts state the bound again, since from now on only noised counts change it.

        Raises:
            InputError: If clip_quantile is not the part before this one, or z >= 2 s_b, where z_delta does not exist.
        """
        votes = _bare_votes(signal, "quantile_noise")
        voters = clock.cohort if self.to == "share" else _voters(signal, clock)
        std = voters / 20 if self.count_std is None else self.count_std
        values = value_multiplier(self.multiplier, std, "quantile_noise")
        shares = math.sqrt(voters) if self.to == "share" else 1.0
        counted = signal.remembering(VOTES, votes + std / shares * normal(votes, rngs, 1))
        noise = ShareOfNoise(multiplier=values) if self.to == "share" else GaussianNoise(multiplier=values, to="sum")
        noised = noise(counted, clock, rngs)
        bound = float(signal.memory[BOUND].max())
        reason = f"the noise of the count of norms, {std / shares:.4g}, is in it (the values alone have {values / shares:.4g})"
        worth = Fact("noise", std=self.multiplier * bound / shares, each=self.to == "share", reason=reason, only=True)
        return dataclasses.replace(noised, facts=(*signal.facts, Fact("clip", norm=bound), worth))


@part("transform.quantile_noise_released")
class QuantileNoiseReleased:
    """Add noise and adapt in the order and with the sign of Flower's `DifferentialPrivacy...AdaptiveClipping` classes.

    Their indicator is 1 for a clipped member, but the step has the sign for an unclipped one, so C falls when too many members are
    clipped. The noise is scaled by C after this step, not by the C of the clip. Server station.
    """

    multiplier: Annotated[NonNegative, Field(description="Noise multiplier z, as in `quantile_noise`.")]
    count_std: Annotated[
        Positive | None, Field(description="Standard deviation s_b of the count's noise; None is m / 20.")
    ] = None
    target: Target = 0.5
    learning_rate: LearningRate = 0.2

    def __call__(self, signal: Signal, clock: Clock, rngs: Generators | None) -> Signal:
        """Add noise to the count, step in the wrong direction, and add noise to the values."""
        votes = _bare_votes(signal, "quantile_noise_released")
        std = _voters(signal, clock) / 20 if self.count_std is None else self.count_std
        values = value_multiplier(self.multiplier, std, "quantile_noise_released")
        flipped = signal.remembering(VOTES, -(votes + std * normal(votes, rngs, 1)))
        stepped = AdaptClip(target=self.target, learning_rate=self.learning_rate)(flipped, clock, rngs)
        reason = (
            "data-dependent sensitivity: the noise is scaled by the bound after its step, not by the one that clipped"
        )
        facts = (*stepped.facts, Fact("scale", reason=reason))
        rescaled = dataclasses.replace(stepped, sensitivity=stepped.memory[BOUND][:, 0], facts=facts)
        noised = GaussianNoise(multiplier=values, to="sum")(rescaled, clock, rngs)
        return dataclasses.replace(noised, facts=(*facts, dataclasses.replace(noised.facts[-1], only=True)))


def value_multiplier(multiplier: float, count_std: float, name: str) -> float:
    """Return z_delta = (z^-2 - (2 s_b)^-2)^(-1/2), and 0 for z = 0.

    Args:
        multiplier: z.
        count_std: s_b.
        name: Name of the part, for the message.

    Raises:
        InputError: If z >= 2 s_b.
    """
    if multiplier == 0:
        return 0.0
    if multiplier >= 2 * count_std:
        raise InputError(
            f"{name}: got multiplier {multiplier:g} with a noise of {count_std:g} on the count, expected less than twice the"
            f" count's, {2 * count_std:g} (a smaller multiplier, a larger count_std, or more members)"
        )
    return float((multiplier**-2 - (2 * count_std) ** -2) ** -0.5)


def _bare_votes(signal: Signal, name: str) -> Tensor:
    """Return the votes; raises InputError for a part after clip_quantile, which could change the bound or scale of the values."""
    votes = _votes(signal, name)
    if signal.facts[-1:] != (BARE,):
        raise InputError(f"{name}: another part is between clip_quantile and it; put it right after clip_quantile")
    return votes


def _votes(signal: Signal, name: str) -> Tensor:
    """Return the sum of the votes over all holders, (lanes, 1)."""
    if VOTES not in signal.memory:
        raise InputError(f"{name}: no count of norms, so there is nothing to adapt to; put clip_quantile before it")
    return signal.memory[VOTES].sum(1, keepdim=True)


def _voters(signal: Signal, clock: Clock) -> int:
    """Return m, the expected number of votes: the divisor of a client's mean, or the cohort at the server."""
    return clock.cohort if signal.local is None else signal.averaged
