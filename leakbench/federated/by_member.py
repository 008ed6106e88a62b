"""The gradient of a large batch, one example at a time, so that the memory of its derivative is that of one example.

`torch.utils.checkpoint` does not work inside the transforms of `torch.func`. Without batch statistics, the gradient of a batch is a
sum over its examples. Its derivative by an example is recomputed from this example alone, which takes another forward and backward
pass.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from leakbench.core.types import Parameters

__all__ = ["OneMember", "summed_by_member"]

OneMember: TypeAlias = Callable[[Tensor, Tensor, Tensor], Parameters]
"""(inputs (K, 1, *s), targets (K, 1, classes), weights (K, 1)) -> weighted gradient {p: (K, *p)}; differentiable twice."""


def summed_by_member(one: OneMember, inputs: Tensor, targets: Tensor, weights: Tensor) -> Parameters:
    """Return the sum over the members of a batch of their gradients, {p: (K, *p)}, differentiable once.

    Args:
        one: The gradient of one member.
        inputs: (K, B, *s).
        targets: (K, B, classes).
        weights: (K, B).
    """
    names: list[str] = []
    gradients = _Summed.apply(one, names, inputs, targets, weights)
    return dict(zip(names, gradients, strict=True))


class _Summed(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, one: OneMember, names: list[str], inputs: Tensor, targets: Tensor, weights: Tensor
    ) -> tuple[Tensor, ...]:
        ctx.one = one
        ctx.save_for_backward(inputs, targets, weights)
        total: Parameters = {}
        for m in range(inputs.shape[1]):
            each = one(*(t[:, m : m + 1] for t in (inputs, targets, weights)))
            total = each if not total else {name: g.add_(each[name]) for name, g in total.items()}
        names.extend(total)
        return tuple(total.values())

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *cotangents: Tensor) -> tuple[Any, ...]:
        inputs, targets, weights = ctx.saved_tensors
        by_input, by_target = torch.zeros_like(inputs), torch.zeros_like(targets)
        for m in range(inputs.shape[1]):
            x, y = (t[:, m : m + 1].detach().requires_grad_() for t in (inputs, targets))
            with torch.enable_grad():
                gradients = tuple(ctx.one(x, y, weights[:, m : m + 1]).values())
            slopes = torch.autograd.grad(gradients, (x, y), cotangents, allow_unused=True)
            for whole, slope in zip((by_input, by_target), slopes, strict=True):
                if slope is not None:
                    whole[:, m : m + 1] = slope
        return None, None, by_input, by_target, None
