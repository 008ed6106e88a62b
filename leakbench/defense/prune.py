"""Pruning: send only some coordinates of a gradient. It bounds no norm and adds no noise, so no epsilon follows from it.

Pruning never makes a member longer, and after the noise it is post-processing. A member's own pruning therefore does not change
the guarantee of clip and noise, and its fact has no reason.
"""

from __future__ import annotations

import dataclasses
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from leakbench.core.part import NonNegative, part
from leakbench.core.rng import normal
from leakbench.core.types import Clock, Fact, Generators, Parameters, Signal
from leakbench.defense.guess import surviving
from leakbench.defense.transform import Transform, apart, together

__all__ = ["PruneRandom", "PruneThreshold", "PruneThresholdReleased"]

Share = Annotated[
    float, Field(ge=0, lt=1, description="Share of the coordinates to prune, in [0, 1); their number is rounded down.")
]

LAST_DECIDES = "one example decides for all of its batch: the last one's gradient sets the threshold of pruning"
UNNOISED_CHOICE = (
    "noise on the sent coordinates only: which ones are sent is read off the private gradient without noise"
)


def _magnitudes(signal: Signal) -> Tensor:
    """Return |g| over all tensors together, (lanes, members, coordinates)."""
    return together(signal.grads).detach().abs()


def _count(share: float, coordinates: int) -> int:
    # Without rounding, 0.29 * 100 would become 28.
    return min(coordinates, int(round(share * coordinates, 9)))


def _masked(grads: Parameters, keep: Tensor) -> Parameters:
    """Return the gradients with zeros where `keep` (lanes, members, coordinates) is false; NaN stays NaN."""
    masks = apart(keep, grads)
    return {name: g * masks[name] for name, g in grads.items()}


@part("transform.prune_threshold")
class PruneThreshold:
    """Set the `share` of each member's coordinates with the smallest magnitude to zero, over all its tensors together.

    Wei et al., TPDS 2023, section 4.1, "threshold-based gradient pruning"; share is their mu / 100. The part prunes the
    floor(share * n) smallest of n coordinates and keeps those that equal the threshold.
    """

    share: Share

    def __call__(self, signal: Signal, clock: Clock, rngs: Generators | None) -> Signal:
        """Prune; `sensitivity` stays and nothing is random."""
        sizes = _magnitudes(signal)
        smallest = min(_count(self.share, sizes.shape[2]) + 1, sizes.shape[2])
        keep = sizes >= sizes.kthvalue(smallest, dim=2, keepdim=True).values
        return signal.replace(_masked(signal.grads, keep), signal.sensitivity, Fact("other"))

    def on_a_guess(self, seen: Parameters) -> Transform:
        """Return the transform that the attacker runs on a guess: the mask of the leaked gradient."""
        return surviving(self, seen)


@part("transform.prune_threshold_released")
class PruneThresholdReleased:
    """Set all coordinates up to the `share` quantile of the *last* member's magnitudes to zero, in every member.

    This follows the released LFW_defense notebook of the attack's authors, where the list of magnitudes starts over with each
    example, so that the last example decides. The threshold is index floor(share * n) of its sorted magnitudes. The part prunes
    coordinates that equal the threshold too.
    """

    share: Share

    def __call__(self, signal: Signal, clock: Clock, rngs: Generators | None) -> Signal:
        """Prune; `sensitivity` stays and nothing is random."""
        sizes = _magnitudes(signal)
        index = min(_count(self.share, sizes.shape[2]) + 1, sizes.shape[2])
        keep = sizes > sizes[:, -1:].kthvalue(index, dim=2, keepdim=True).values
        return signal.replace(_masked(signal.grads, keep), signal.sensitivity, Fact("other", reason=LAST_DECIDES))

    def on_a_guess(self, seen: Parameters) -> Transform:
        """Return the transform that the attacker runs on a guess: the mask of the leaked gradient."""
        return surviving(self, seen)


@part("transform.prune_random")
class PruneRandom:
    """Keep a random `share` of each member's coordinates, selected among those whose magnitude is above `threshold`.

    Distributed selective SGD (Shokri and Shmatikov, CCS 2015) with its selection "random with threshold". The part keeps
    floor(share * n) of n coordinates, at least 1, with equal probability. If fewer are above the threshold, all of these stay.
    The lane's generator draws for each member separately.
    """

    share: Annotated[float, Field(gt=0, le=1, description="Share of the coordinates to keep, in (0, 1].")]
    threshold: Annotated[NonNegative, Field(description="Magnitude that a kept coordinate must exceed.")] = 0.0
    noise: Annotated[
        NonNegative,
        Field(description="Standard deviation of the Gaussian noise on the kept coordinates."),
    ] = 0.0

    def __call__(self, signal: Signal, clock: Clock, rngs: Generators | None) -> Signal:
        """Prune; `sensitivity` stays. Without `rngs`, all coordinates above the threshold stay."""
        sizes = _magnitudes(signal)
        keep = sizes > self.threshold
        grads = signal.grads
        if rngs is not None:
            lots = torch.cat([normal(g, rngs, signal.members).flatten(2) for g in grads.values()], dim=2)
            lots = lots.masked_fill(~keep, -torch.inf)
            drawn = max(1, _count(self.share, sizes.shape[2]))
            keep = keep & (lots >= lots.kthvalue(sizes.shape[2] - drawn + 1, dim=2, keepdim=True).values)
        if self.noise:
            grads = {name: g + self.noise * normal(g, rngs, signal.members) for name, g in grads.items()}
        after = signal.replace(_masked(grads, keep), signal.sensitivity, self._fact())
        if not self.noise:
            return after
        noise = Fact("uncalibrated_noise", std=self.noise, each=True, reason=UNNOISED_CHOICE)
        return dataclasses.replace(after, facts=(*after.facts, noise))

    def on_a_guess(self, seen: Parameters) -> Transform:
        """Return the transform that the attacker runs on a guess: the mask of the leaked gradient."""
        return surviving(self, seen)

    def _fact(self) -> Fact:
        return Fact("other", reason=UNNOISED_CHOICE if self.noise else "")
