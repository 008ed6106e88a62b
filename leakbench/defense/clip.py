"""Clipping: bound what one member (an example's gradient, a client's update) can contribute, and say so in `sensitivity`."""

from __future__ import annotations

import torch
from torch import Tensor

from leakbench.types import Clock, Fact, Generators, Positive, Signal, part

__all__ = ["ClipLayers", "ClipWhole", "member_norms"]


def member_norms(signal: Signal) -> dict[str, Tensor]:
    """Return {parameter: (lanes, members)}, the L2 norm of each tensor of each member."""
    return {name: g.flatten(2).norm(dim=2) for name, g in signal.grads.items()}


def _scaled(grad: Tensor, factor: Tensor) -> Tensor:
    return grad * factor.reshape(*factor.shape, *[1] * (grad.dim() - 2))


def _factor(norms: Tensor, bound: float) -> Tensor:
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
        squares = [n.square() for n in member_norms(signal).values()]
        factor = _factor(torch.stack(squares).sum(0).sqrt(), self.norm)
        grads = {name: _scaled(g, factor) for name, g in signal.grads.items()}
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
        norms = member_norms(signal)
        grads = {name: _scaled(g, _factor(norms[name], self.norm)) for name, g in signal.grads.items()}
        bound = self.norm * len(norms) ** 0.5
        return signal.replace(
            grads, norms[next(iter(norms))].new_full((signal.lanes,), self.norm), Fact("clip", norm=bound)
        )
