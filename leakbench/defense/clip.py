"""Clipping: bound what one member (an example's gradient, a client's update) can contribute, and say so in `sensitivity`."""

from __future__ import annotations

import torch
from torch import Tensor

from leakbench.part import Positive, part
from leakbench.types import Clock, Fact, Generators, Signal

__all__ = ["ClipLayers", "ClipLayersShared", "ClipWhole", "clip_factor", "member_norms", "scaled", "whole_norms"]


def member_norms(signal: Signal) -> dict[str, Tensor]:
    """Return {parameter: (lanes, members)}, the L2 norm of each tensor of each member."""
    return {name: g.flatten(2).norm(dim=2) for name, g in signal.grads.items()}


def whole_norms(signal: Signal) -> Tensor:
    """Return (lanes, members), the L2 norm of each member over all its tensors together."""
    return torch.stack([n.square() for n in member_norms(signal).values()]).sum(0).sqrt()


def scaled(grad: Tensor, factor: Tensor) -> Tensor:
    """Return grad (lanes, members, *p) times factor (lanes, members)."""
    return grad * factor.reshape(*factor.shape, *[1] * (grad.dim() - 2))


def clip_factor(norms: Tensor, bound: float | Tensor) -> Tensor:
    """Return min(1, bound / norms), (lanes, members), for a bound that is a number or of a shape that broadcasts."""
    # A zero gradient has nothing to clip; the clamp keeps its factor at 1 instead of dividing by zero.
    return (bound / norms.clamp_min(torch.finfo(norms.dtype).tiny)).clamp_max(1.0)


@part
class ClipWhole:
    """Scale each member so that its L2 norm over all parameters together is at most `norm`.

    The flat clip of DP-SGD (Abadi et al., CCS 2016, Algorithm 1, "Clip gradient"): its sensitivity is `norm` itself.
    """

    norm: Positive

    def __call__(self, signal: Signal, clock: Clock, rngs: Generators | None) -> Signal:
        """Clip; `sensitivity` becomes `norm` in every lane."""
        factor = clip_factor(whole_norms(signal), self.norm)
        grads = {name: scaled(g, factor) for name, g in signal.grads.items()}
        return signal.replace(grads, factor.new_full((signal.lanes,), self.norm), Fact("clip", norm=self.norm))


@part
class ClipLayers:
    """Scale each tensor of each member so that its own L2 norm is at most `norm`.

    The layer-wise clip of Fed-CDP and Fed-alphaCDP (Wei et al., TPDS 2023, section 5.1): the noise is scaled to `norm`, but
    the whole member, over M tensors, is only bounded by sqrt(M) * norm, which the ledger is told.
    """

    norm: Positive

    def __call__(self, signal: Signal, clock: Clock, rngs: Generators | None) -> Signal:
        """Clip; `sensitivity` becomes `norm` in every lane."""
        tensors = len(signal.grads)
        reason = f"a clip layer by layer bounds {tensors} tensors together only by sqrt({tensors}) times its norm"
        return _by_layer(signal, self.norm, self.norm, self.norm * tensors**0.5, reason if tensors > 1 else "")


@part
class ClipLayersShared:
    """Scale each of a member's M tensors to an L2 norm of at most norm / sqrt(M), so that the member keeps within `norm`.

    The layer-wise clip with the whole's bound shared out equally (McMahan et al., "Learning Differentially Private
    Recurrent Language Models", ICLR 2018, "per-layer clipping"): the sensitivity is `norm`, as after `clip_whole`.
    """

    norm: Positive

    def __call__(self, signal: Signal, clock: Clock, rngs: Generators | None) -> Signal:
        """Clip; `sensitivity` becomes `norm` in every lane."""
        return _by_layer(signal, self.norm / len(signal.grads) ** 0.5, self.norm, self.norm)


def _by_layer(signal: Signal, bound: float, sensitivity: float, whole: float, reason: str = "") -> Signal:
    """Clip every tensor at `bound`; the noise is scaled to `sensitivity`, a member's norm is at most `whole`."""
    norms = member_norms(signal)
    grads = {name: scaled(g, clip_factor(norms[name], bound)) for name, g in signal.grads.items()}
    scale = next(iter(norms.values())).new_full((signal.lanes,), sensitivity)
    return signal.replace(grads, scale, Fact("clip", norm=whole, reason=reason))
