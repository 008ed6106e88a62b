"""Rules that set the noise scale from the data, which Fed-alphaCDP calls sensitivity. No guarantee follows from them."""

from __future__ import annotations

from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from leakbench.core.errors import InputError
from leakbench.core.part import Bound, check_limits, part
from leakbench.core.types import Clock, Fact, Generators, Signal
from leakbench.defense.by_norm import Norms, Scaling, scale_by_norm
from leakbench.defense.clip import ClipLayers

__all__ = ["L2Max", "L2MaxReleased"]


@part("transform.l2_max")
class L2Max:
    """Set the sensitivity to the largest layer norm among all members: S = max over members and layers of the L2 norm.

    Fed-alphaCDP's l2-max (Wei et al., TPDS 2023, section 5.2) at the example station, after the clip, so that S <= C. At
    the batch station the only member is the mean gradient, as in their Algorithm 1, lines 16 and 17.
    """

    def __call__(self, signal: Signal, clock: Clock, rngs: Generators | None) -> Signal:
        """Set `sensitivity` to the (lanes,) maxima; the gradients stay."""
        return scale_by_norm(self, signal, clock)

    def by_norm(self, norms: Norms, sensitivity: Tensor | None, clock: Clock) -> Scaling:
        """Return the largest norms without a factor; raises InputError if no clip came before."""
        if sensitivity is None:
            raise InputError("l2_max: no clip before it at this station; put clip_layers or clip_whole first")
        largest = torch.stack(list(norms.values())).amax(0).amax(1).detach()
        reason = (
            "data-dependent sensitivity: the noise is scaled by the largest layer norm of the private batch (l2-max)"
        )
        return Scaling({}, largest, (Fact("scale", reason=reason),))


@part("transform.l2_max_released")
class L2MaxReleased:
    """Clip each member at its own largest layer norm, limited to [floor, ceiling]; the noise scale is the mean of these limits.

    This follows code of the authors' released script that is commented out. It clips nothing below the ceiling and ignores C.
    """

    floor: Annotated[Bound, Field(description="Least limit of a member.")] = 0.1
    ceiling: Annotated[Bound, Field(description="Largest limit of a member.")] = 32.0

    def __post_init__(self) -> None:
        check_limits(self.floor, self.ceiling)

    def __call__(self, signal: Signal, clock: Clock, rngs: Generators | None) -> Signal:
        """Clip at the ceiling; `sensitivity` becomes the members' mean limit, (lanes,)."""
        return scale_by_norm(self, signal, clock)

    def by_norm(self, norms: Norms, sensitivity: Tensor | None, clock: Clock) -> Scaling:
        """Return the factors of tensors above the ceiling, and the mean limit."""
        own = torch.stack(list(norms.values())).amax(0).clamp(self.floor, self.ceiling)
        clipped = ClipLayers(norm=self.ceiling).by_norm(norms, sensitivity, clock)
        reason = "data-dependent sensitivity: the noise is scaled by the mean over the batch of each example's largest layer norm"
        facts = (*clipped.facts, Fact("scale", reason=reason))
        return Scaling(clipped.factors, own.mean(1).detach(), facts)
