"""Rules that set the scale of the noise from the data: what Fed-alphaCDP calls sensitivity. None of them carries a guarantee."""

from __future__ import annotations

import torch
from torch import Tensor

from leakbench.defense.by_norm import Norms, Scaling, scale_by_norm
from leakbench.defense.clip import ClipLayers
from leakbench.errors import InputError
from leakbench.part import Bound, check_limits, part
from leakbench.types import Clock, Fact, Generators, Signal

__all__ = ["L2Max", "L2MaxReleased"]


@part("transform.l2_max")
class L2Max:
    """Set the sensitivity to the largest layer norm among all members: S = max over members and layers of the L2 norm.

    Fed-alphaCDP's l2-max (Wei et al., TPDS 2023, section 5.2) at the example station, after the clip, so that S <= C. At
    the batch station the members are one mean gradient: the reading of their Algorithm 1, lines 16 and 17.
    """

    def __call__(self, signal: Signal, clock: Clock, rngs: Generators | None) -> Signal:
        """Leave the gradients alone; `sensitivity` becomes (lanes,) maxima."""
        return scale_by_norm(self, signal, clock)

    def by_norm(self, norms: Norms, sensitivity: Tensor | None, clock: Clock) -> Scaling:
        """Scale nothing; raises InputError where no clip came before."""
        if sensitivity is None:
            raise InputError("l2_max: no clip before it at this station; put clip_layers or clip_whole first")
        largest = torch.stack(list(norms.values())).amax(0).amax(1).detach()
        reason = (
            "data-dependent sensitivity: the noise is scaled by the largest layer norm of the private batch (l2-max)"
        )
        return Scaling({}, largest, (Fact("scale", reason=reason),))


@part("transform.l2_max_released")
class L2MaxReleased:
    """Clip each member at its own largest layer norm, limited to [floor, ceiling]; the scale is the mean of these limits.

    This follows the authors' released script, where it is commented out: nothing is clipped below the ceiling, and C is not used.
    """

    floor: Bound = 0.1
    ceiling: Bound = 32.0

    def __post_init__(self) -> None:
        check_limits(self.floor, self.ceiling)

    def __call__(self, signal: Signal, clock: Clock, rngs: Generators | None) -> Signal:
        """Clip at the ceiling; `sensitivity` becomes the members' mean limit, (lanes,)."""
        return scale_by_norm(self, signal, clock)

    def by_norm(self, norms: Norms, sensitivity: Tensor | None, clock: Clock) -> Scaling:
        """Scale what is above the ceiling."""
        own = torch.stack(list(norms.values())).amax(0).clamp(self.floor, self.ceiling)
        clipped = ClipLayers(norm=self.ceiling).by_norm(norms, sensitivity, clock)
        reason = "data-dependent sensitivity: the noise is scaled by the mean over the batch of each example's largest layer norm"
        facts = (*clipped.facts, Fact("scale", reason=reason))
        return Scaling(clipped.factors, own.mean(1).detach(), facts)
