"""Clips at the median norm of the members (Geyer et al. 2017). The median depends on private data, so no guarantee follows."""

from __future__ import annotations

import dataclasses
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from leakbench.core.part import NonNegative, part
from leakbench.core.rng import normal
from leakbench.core.types import Clock, Fact, Generators, Signal
from leakbench.defense.by_norm import clip_factor, finite_norms, scaled, whole_norm

__all__ = ["ClipInverted", "ClipMedian"]

MEDIAN = "data-dependent sensitivity: noise and clip are scaled by the median norm of the private updates"
ONE_MOVES_ALL = "data-dependent sensitivity: one update can move the median norm, at which all others are clipped"
UNBOUNDED = (
    "inverted clip: an update above the median norm passes as it is and a smaller one is scaled up to the median, "
    "so one contribution has no bound"
)


@part("transform.clip_median")
class ClipMedian:
    """Scale each member to a whole L2 norm of at most S, the median of the members' whole norms.

    Geyer, Klein and Nabi 2017, section 3 and Algorithm 1, lines 9 and 10, at the server, where the members are the round's
    updates. For an even number of members, the median is halfway between the two in the middle. A single update, as an attacker at
    type-0 sees it, is its own median and is not clipped.
    """

    def __call__(self, signal: Signal, clock: Clock, rngs: Generators | None) -> Signal:
        """Clip; `sensitivity` becomes the median, (lanes,)."""
        signal, each = finite_norms(signal)
        norms = whole_norm(each)
        median = _median(norms)
        factor = clip_factor(norms, median)
        grads = {name: scaled(g, factor) for name, g in signal.grads.items()}
        # Two facts: the scale of the noise is private, and one member changes all others, which no later clip undoes.
        after = signal.replace(grads, median[:, 0].detach(), Fact("scale", reason=MEDIAN))
        return dataclasses.replace(after, facts=(*after.facts, Fact("other", reason=ONE_MOVES_ALL)))


@part("transform.clip_inverted")
class ClipInverted:
    """Scale each tensor *up* to the median norm that this tensor has among the members; leave larger ones unchanged.

    This is the code that Geyer et al. released: per tensor, factor = min(norm / median, 1) and update / factor. A zero tensor,
    where the code divides zero by zero, stays zero here. The noise belongs to this part because each tensor has its own scale.
    """

    noise_multiplier: Annotated[
        NonNegative,
        Field(
            description=(
                "Noise multiplier of each tensor's sum: the standard deviation is noise_multiplier times the tensor's median "
                "norm, as in the released code."
            )
        ),
    ] = 0.0

    def __call__(self, signal: Signal, clock: Clock, rngs: Generators | None) -> Signal:
        """Scale up and add the noise; `sensitivity` becomes the largest median among the tensors, (lanes,)."""
        grads, medians = {}, []
        items = signal.averaged * signal.members
        signal, each = finite_norms(signal)
        for name, norms in each.items():
            median = _median(norms)
            smaller = (norms > 0) & (norms < median)
            factor = torch.where(smaller, median / torch.where(smaller, norms, 1.0), 1.0)
            g = scaled(signal.grads[name], factor)
            grads[name] = g + scaled(normal(g, rngs, 1), self.noise_multiplier * median.detach() / items)
            medians.append(median.detach()[:, 0])
        largest = torch.stack(medians).amax(0)
        noise = (Fact("noise", std=self.noise_multiplier * float(largest[0])),) if self.noise_multiplier else ()
        facts = (*signal.facts, Fact("clip", reason=UNBOUNDED), Fact("other", reason=UNBOUNDED), *noise)
        return dataclasses.replace(signal, grads=grads, sensitivity=largest, facts=facts)


def _median(norms: Tensor) -> Tensor:
    """Return (lanes, 1), the median over the members."""
    return norms.quantile(0.5, dim=1, keepdim=True)
