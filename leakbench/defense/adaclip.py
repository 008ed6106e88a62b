"""AdaClip (Pichapati et al., arXiv 1908.07643, 2019): clip and add noise in coordinates that follow the noised gradients.

The memory has two entries for each parameter, both (lanes, 1, *p): `adaclip.mean.NAME` is m, `adaclip.deviation.NAME` is s. They
start at 0 and sqrt(floor * ceiling). Only released gradients enter them, so they cost no privacy.
"""

from __future__ import annotations

import dataclasses
from typing import Annotated, ClassVar, TypeAlias

import torch
from pydantic import Field
from torch import Tensor

from leakbench.core.part import Bound, Fraction, NonNegative, Positive, check_limits, part
from leakbench.core.rng import normal
from leakbench.core.types import Clock, Fact, Generators, Parameters, Signal
from leakbench.defense.by_norm import clip_factor, finite_norms, scaled
from leakbench.engine.rows import length

__all__ = ["AdaClip", "AdaClipReleased"]

MEAN, DEVIATION = "adaclip.mean.", "adaclip.deviation."

MeanDecay: TypeAlias = Annotated[Fraction, Field(description="Weight of the old mean m in a step, in [0, 1].")]
DeviationDecay: TypeAlias = Annotated[
    Fraction, Field(description="Weight of the old deviation s in a step, in [0, 1].")
]
Floor: TypeAlias = Annotated[
    Positive,
    Field(description="Least variance v of a coordinate, h1 in the paper. The default is that of DP-dSNE's code."),
]
Ceiling: TypeAlias = Annotated[
    Positive,
    Field(description="Largest variance v of a coordinate, h2 in the paper. The default is that of DP-dSNE's code."),
]


@part("transform.adaclip")
class AdaClip:
    """Release g~ = b (clip((g - m) / b) + noise) + m for each member g, and update m and b from the released g~.

    Pichapati et al.'s algorithm: b_i = sqrt(s_i) sqrt(sum of s), m <- beta1 m + (1 - beta1) g~, s^2 <- beta2 s^2 + (1 - beta2) v,
    where v = (g~ - m)^2 - b^2 sigma^2, limited to [floor, ceiling], uses m before its step. g~ and v are means over the members.

    A missing member counts as m.
    """

    stateful: ClassVar[bool] = True

    multiplier: Annotated[NonNegative, Field(description="Noise multiplier sigma, in units of `norm`.")]
    norm: Annotated[Bound, Field(description="Clip bound in the scaled coordinates, 1 in the paper.")] = 1.0
    beta1: MeanDecay = 0.99
    beta2: DeviationDecay = 0.9
    floor: Floor = 1e-5
    ceiling: Ceiling = 1e-3

    def __post_init__(self) -> None:
        check_limits(self.floor, self.ceiling)

    def __call__(self, signal: Signal, clock: Clock, rngs: Generators | None) -> Signal:
        """Release the members; `sensitivity` becomes None, since noise after this part has no scale."""
        mean, deviation = _recalled(signal, (self.floor * self.ceiling) ** 0.5)
        scale, std = _scale(deviation), self.multiplier * self.norm
        released = _released(signal, mean, scale, self.norm, std, rngs)
        after = {}
        for n, g in released.grads.items():
            spread = ((g - mean[n]).square() - (scale[n] * std).square()).clamp(self.floor, self.ceiling)
            after[MEAN + n] = torch.lerp(g.mean(1, keepdim=True), mean[n], self.beta1)
            squared = torch.lerp(spread.mean(1, keepdim=True), deviation[n].square(), self.beta2)
            after[DEVIATION + n] = squared.sqrt()
        return _left(released, after, self.norm, std)


@part("transform.adaclip_released")
class AdaClipReleased:
    """Run AdaClip as github.com/soominkwon/DP-dSNE does (adaclip.py), where each row is a member.

    This part repeats the errors of that code: it adds noise of standard deviation `noise_variance` but subtracts the number as a
    variance; it measures v from m after the step of m; it updates s with the variance v and uses s as a standard deviation in b.
    """

    stateful: ClassVar[bool] = True

    noise_variance: Annotated[
        NonNegative,
        Field(description="Standard deviation of the noise; the released code uses it as the variance too."),
    ] = 1e-3
    beta1: MeanDecay = 0.99
    beta2: DeviationDecay = 0.9
    floor: Floor = 1e-5
    ceiling: Ceiling = 1e-3

    def __post_init__(self) -> None:
        check_limits(self.floor, self.ceiling)

    def __call__(self, signal: Signal, clock: Clock, rngs: Generators | None) -> Signal:
        """Release the members; `sensitivity` becomes None."""
        mean, deviation = _recalled(signal, (self.floor * self.ceiling) ** 0.5)
        scale = _scale(deviation)
        released = _released(signal, mean, scale, 1.0, self.noise_variance, rngs)
        after = {}
        for n, g in released.grads.items():
            stepped = torch.lerp(g.mean(1, keepdim=True), mean[n], self.beta1)
            spread = ((g - stepped).square() - scale[n].square() * self.noise_variance).clamp(self.floor, self.ceiling)
            after[MEAN + n] = stepped
            after[DEVIATION + n] = torch.lerp(spread.mean(1, keepdim=True), deviation[n], self.beta2)
        return _left(released, after, 1.0, self.noise_variance)


def _recalled(signal: Signal, initial: float) -> tuple[Parameters, Parameters]:
    """Return (m, s), each {p: (lanes, 1, *p)}."""

    def recall(prefix: str, start: float) -> Parameters:
        return {
            n: signal.memory.get(prefix + n, g.new_full((signal.lanes, 1, *g.shape[2:]), start))
            for n, g in signal.grads.items()
        }

    return recall(MEAN, 0.0), recall(DEVIATION, initial)


def _scale(deviation: Parameters) -> Parameters:
    """Return b_i = sqrt(s_i) sqrt(sum of s over all coordinates), which gives the least noise with E|w|^2 <= 1."""
    total = torch.stack([s.flatten(2).sum(2) for s in deviation.values()]).sum(0)
    return {n: s.sqrt() * _like(total, s).sqrt() for n, s in deviation.items()}


def _released(
    signal: Signal, mean: Parameters, scale: Parameters, norm: float, std: float, rngs: Generators | None
) -> Signal:
    """Return the signal with its released members; one that is not finite in the scaled coordinates counts as m."""
    apart = {n: (g - mean[n]) / scale[n] for n, g in signal.grads.items()}
    signal, norms = finite_norms(dataclasses.replace(signal, grads=apart))
    factor = clip_factor(length(torch.stack(list(norms.values())), 0), norm)
    noised = {n: scaled(w, factor) + std * normal(w, rngs, signal.members) for n, w in signal.grads.items()}
    return dataclasses.replace(signal, grads={n: scale[n] * w + mean[n] for n, w in noised.items()})


def _like(factor: Tensor, tensor: Tensor) -> Tensor:
    return factor.reshape(*factor.shape, *[1] * (tensor.dim() - 2))


def _left(released: Signal, after: Parameters, norm: float, std: float) -> Signal:
    reason = (
        "in AdaClip's coordinates (g - m) / b, which only released gradients shape; others' noise does not add to it"
    )
    noise = Fact("noise", std=std, each=True, reason=reason)
    # The update of s reads each member's own square, so the ledger must not add up the members' noises.
    squares = Fact("other", reason="the square of each released member enters s by itself")
    facts = (*released.facts, Fact("clip", norm=norm, rescales=True), noise, squares)
    return dataclasses.replace(released, sensitivity=None, facts=facts, memory={**released.memory, **after})
