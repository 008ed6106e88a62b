"""Clipping: bound the contribution of one member (an example's gradient, a client's update) and record it in `sensitivity`."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field
from torch import Tensor

from leakbench.core.part import Bound, part
from leakbench.core.types import Clock, Fact, Generators, Signal
from leakbench.defense.by_norm import Norms, Scaling, clip_factor, scale_by_norm, whole_norm

__all__ = ["ClipLayers", "ClipLayersShared", "ClipWhole"]


@part("transform.clip_whole")
class ClipWhole:
    """Scale each member so that its L2 norm over all parameters together is at most `norm`.

    The flat clip of DP-SGD (Abadi et al., CCS 2016, Algorithm 1, "Clip gradient"): its sensitivity is `norm` itself.
    """

    scales_clip: ClassVar[str] = "norm"

    norm: Annotated[Bound, Field(description="Largest L2 norm of a member over all its tensors.")]

    def __call__(self, signal: Signal, clock: Clock, rngs: Generators | None) -> Signal:
        """Clip; `sensitivity` becomes `norm` in every lane."""
        return scale_by_norm(self, signal, clock)

    def by_norm(self, norms: Norms, sensitivity: Tensor | None, clock: Clock) -> Scaling:
        """Return one factor for all tensors of a member."""
        factor = clip_factor(whole_norm(norms), self.norm)
        return Scaling(
            dict.fromkeys(norms, factor), factor.new_full(factor.shape[:1], self.norm), (Fact("clip", norm=self.norm),)
        )


@part("transform.clip_layers")
class ClipLayers:
    """Scale each tensor of each member so that its own L2 norm is at most `norm`.

    The layer-wise clip of Fed-CDP and Fed-alphaCDP (Wei et al., TPDS 2023, section 5.1). The noise is scaled to `norm`, but
    the whole member, over M tensors, is only bounded by sqrt(M) * norm, and the accounting uses this bound.
    """

    scales_clip: ClassVar[str] = "norm"

    norm: Annotated[Bound, Field(description="Largest L2 norm of each tensor of a member.")]

    def __call__(self, signal: Signal, clock: Clock, rngs: Generators | None) -> Signal:
        """Clip; `sensitivity` becomes `norm` in every lane."""
        return scale_by_norm(self, signal, clock)

    def by_norm(self, norms: Norms, sensitivity: Tensor | None, clock: Clock) -> Scaling:
        """Scale each tensor by its own norm."""
        tensors = len(norms)
        reason = f"a clip layer by layer bounds {tensors} tensors together only by sqrt({tensors}) times its norm"
        return _by_layer(norms, self.norm, self.norm, self.norm * tensors**0.5, reason if tensors > 1 else "")


@part("transform.clip_layers_shared")
class ClipLayersShared:
    """Scale each of a member's M tensors to an L2 norm of at most norm / sqrt(M), so that the member stays within `norm`.

    The layer-wise clip with the bound of the whole divided equally (McMahan et al., "Learning Differentially Private
    Recurrent Language Models", ICLR 2018, "per-layer clipping"): the sensitivity is `norm`, as after `clip_whole`.
    """

    scales_clip: ClassVar[str] = "norm"

    norm: Annotated[Bound, Field(description="Largest L2 norm of a member; each of its M tensors gets norm / sqrt(M).")]

    def __call__(self, signal: Signal, clock: Clock, rngs: Generators | None) -> Signal:
        """Clip; `sensitivity` becomes `norm` in every lane."""
        return scale_by_norm(self, signal, clock)

    def by_norm(self, norms: Norms, sensitivity: Tensor | None, clock: Clock) -> Scaling:
        """Scale each tensor by its own norm."""
        return _by_layer(norms, self.norm / len(norms) ** 0.5, self.norm, self.norm)


def _by_layer(norms: Norms, bound: float, sensitivity: float, whole: float, reason: str = "") -> Scaling:
    """Clip every tensor at `bound`; the noise is scaled to `sensitivity`, a member's norm is at most `whole`."""
    factors = {name: clip_factor(norm, bound) for name, norm in norms.items()}
    some = next(iter(norms.values()))
    return Scaling(factors, some.new_full(some.shape[:1], sensitivity), (Fact("clip", norm=whole, reason=reason),))
