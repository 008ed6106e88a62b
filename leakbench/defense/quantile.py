"""A clip bound that follows a quantile of the norms (Andrew et al., NeurIPS 2021): clip and count, noise, adapt.

What is remembered: `clip_bound`, the bound C in force, and until the next `adapt_clip` `within_bound`, the sum of the votes
on it: +1/2 of a member whose norm is at most C, -1/2 of one that is clipped. One member adds or takes at most 1/2, from which
the 2 s_b below comes, and whoever is absent votes 0.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from leakbench.defense.by_norm import clip_factor, member_norms, scaled
from leakbench.defense.noise import GaussianNoise
from leakbench.defense.share import ShareOfNoise
from leakbench.errors import InputError
from leakbench.lengths import length
from leakbench.part import Bound, NonNegative, Positive, Probability, part
from leakbench.rng import normal
from leakbench.types import Clock, Fact, Generators, Signal

__all__ = ["AdaptClip", "ClipQuantile", "QuantileNoise", "QuantileNoiseReleased", "value_multiplier"]

LEAST, MOST = 1e-15, 1e30
"""Between which the bound stays: what single precision can clip at."""

BOUND, VOTES = "clip_bound", "within_bound"

BARE = Fact(
    "scale",
    reason="data-dependent sensitivity: the clip bound follows the private norms, and the count behind it has no noise",
    raw=True,
)


@part("transform.clip_quantile")
class ClipQuantile:
    """Scale each member so that its whole L2 norm is at most the remembered bound C, and count the members within it.

    Andrew et al., Algorithm 1: b_i = 1[norm <= C].
    """

    stateful: ClassVar[bool] = True

    initial: Annotated[
        Bound,
        Field(
            description=(
                "C in the first use. Without noise on the count (`quantile_noise`), C depends on the private norms, and no "
                "epsilon follows."
            )
        ),
    ]

    def __call__(self, signal: Signal, clock: Clock, rngs: Generators | None) -> Signal:
        """Clip; `sensitivity` becomes C, and the sum of the votes, (lanes, 1), is left for `adapt_clip`."""
        norms = length(torch.stack(list(member_norms(signal).values())), 0)
        bound = signal.memory.get(BOUND, norms.new_full((signal.lanes, 1), self.initial))
        factor = clip_factor(norms, bound)
        grads = {n: scaled(g, factor) for n, g in signal.grads.items()}
        # Padding of a batch, and the update of a cohort in which nobody is, are exactly zero: they do not vote.
        votes = ((norms <= bound).to(norms) - 0.5) * (norms > 0)
        clipped = signal.replace(grads, bound[:, 0], Fact("clip", norm=float(bound.max()), rescales=True))
        counted = clipped.remembering(BOUND, bound).remembering(VOTES, votes.sum(1, keepdim=True))
        return dataclasses.replace(counted, facts=(*counted.facts, BARE))


@part("transform.adapt_clip")
class AdaptClip:
    """Set the bound for the next use: C <- C exp(-learning_rate (b - target)), b the share of members within C, C in [1e-15, 1e30].

    Andrew et al., Algorithm 1, the geometric update, with b = 1/2 + (sum of votes) / m. At the `batch` station, m is the expected
    size B of a batch; at the `server` station, it is the size K_t of a cohort. Raises InputError without a clip_quantile before it.
    """

    target: Probability = 0.5
    learning_rate: Positive = 0.2

    def __call__(self, signal: Signal, clock: Clock, rngs: Generators | None) -> Signal:
        """Leave the gradients alone; only what is remembered changes."""
        share = 0.5 + _votes(signal, "adapt_clip") / _voters(signal, clock)
        before = signal.memory[BOUND].mean(1, keepdim=True)
        after = (before * torch.exp(-self.learning_rate * (share - self.target))).clamp(LEAST, MOST)
        kept = {name: m for name, m in signal.memory.items() if name != VOTES}
        return dataclasses.replace(signal, memory={**kept, BOUND: after})


@part("transform.quantile_noise")
class QuantileNoise:
    """Add noise to the values and to the count, together worth the multiplier z for the effect of one member on both.

    Andrew et al., Theorem 1: the count gets s_b, and the values z_delta C with z_delta = (z^-2 - (2 s_b)^-2)^(-1/2).
    """

    multiplier: Annotated[NonNegative, Field(description="z.")]
    to: Annotated[
        Literal["sum", "share"],
        Field(
            description=(
                "`sum`: one noise for the sum, at the `batch` or `server` station; `share`: each of m clients adds its share, 1 /"
                " sqrt(m) of both, so that no vote leaves a client without noise. Raises InputError where clip_quantile was not "
                "the last to act, and for z >= 2 s_b, where z_delta does not exist."
            )
        ),
    ]
    count_std: Annotated[
        Positive | None,
        Field(description="s_b; None is m / 20, the default of TensorFlow Federated and Flower."),
    ] = None

    def __call__(self, signal: Signal, clock: Clock, rngs: Generators | None) -> Signal:
        """Add both noises; the facts restate the bound, since from here on only noised counts enter it."""
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

    Their indicator says "was clipped" while the step keeps its sign, so C falls when too many are clipped. The noise is scaled by
    C after this step, not by the C of the clip. Fields as in `quantile_noise` and `adapt_clip`. Server station.
    """

    multiplier: NonNegative
    count_std: Positive | None = None
    target: Probability = 0.5
    learning_rate: Positive = 0.2

    def __call__(self, signal: Signal, clock: Clock, rngs: Generators | None) -> Signal:
        """Noise the count, step the wrong way, noise the values."""
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
    """Return z_delta = (z^-2 - (2 s_b)^-2)^(-1/2), 0 for z = 0; raises InputError where z >= 2 s_b."""
    if multiplier == 0:
        return 0.0
    if multiplier >= 2 * count_std:
        raise InputError(
            f"{name}: got multiplier {multiplier:g} with a noise of {count_std:g} on the count, expected less than twice the"
            f" count's, {2 * count_std:g} (a smaller multiplier, a larger count_std, or more members)"
        )
    return float((multiplier**-2 - (2 * count_std) ** -2) ** -0.5)


def _bare_votes(signal: Signal, name: str) -> Tensor:
    """Return the votes where clip_quantile was the last to act: what came between could change the values' bound or scale."""
    votes = _votes(signal, name)
    if signal.facts[-1:] != (BARE,):
        raise InputError(f"{name}: another part stands between clip_quantile and it; put it right after clip_quantile")
    return votes


def _votes(signal: Signal, name: str) -> Tensor:
    """Return the sum of the votes over all holders, (lanes, 1)."""
    if VOTES not in signal.memory:
        raise InputError(f"{name}: no count of norms, so there is nothing to adapt to; put clip_quantile before it")
    return signal.memory[VOTES].sum(1, keepdim=True)


def _voters(signal: Signal, clock: Clock) -> int:
    """Return m, how many votes are expected: what a client's mean is divided by, at the server the cohort."""
    return clock.cohort if signal.local is None else signal.averaged
