"""Gradients of a chain that can be differentiated once more with respect to the examples, as searches for the examples do.

After a forward and backward pass, the derivative of <R, gradient> with respect to the inputs is that of the loss's derivative along
R, a direction in weight space. It takes one pass of tangents through the layers and one more backward pass (Pearlmutter, "Fast
Exact Multiplication by the Hessian", 1994, with the roles of weights and inputs exchanged). The number of products is that of
autograd, but without its graph no tensor is stored twice, and linear steps need no sums.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from leakbench.core.types import Parameters
from leakbench.engine.chain import Chain, ThereAndBack
from leakbench.engine.steps import Affine, Passed

__all__ = ["Along", "Direction", "answers_and_gradients", "gradients", "gradients_once", "pulled"]


def gradients(
    chain: Chain,
    parameters: Parameters,
    shared: bool,
    inputs: Tensor,
    targets: Tensor,
    weights: Tensor,
    merged: bool,
) -> Parameters:
    """Return every example's gradient {p: (K, B, *p)}, or if `merged` their sums {p: (K, 1, *p)}.

    The other arguments are those of `Chain.gradient`.
    """
    if _searched(parameters, shared, inputs):
        return gradients_once(chain, parameters, inputs, targets, weights, merged)
    layers = chain.gradient(parameters, shared, inputs, targets, weights)
    return {n: g for layer in layers for n, g in (layer.merged() if merged else layer.each()).items()}


def answers_and_gradients(
    chain: Chain, parameters: Parameters, shared: bool, inputs: Tensor, cotangents: Tensor
) -> tuple[Tensor, Parameters]:
    """Return the output (K, B, d), and the sums {p: (K, 1, *p)} over examples of the gradients of <cotangents, output>.

    The other arguments are those of `Chain.there_and_back_along`.
    """
    if _searched(parameters, shared, inputs) and not cotangents.requires_grad:
        answer, *grads = _AnswerAndGradients.apply(chain, parameters, cotangents, inputs)
        return answer, dict(zip(_names(chain), grads, strict=True))
    passage = chain.there_and_back_along(parameters, shared, inputs, cotangents)
    return passage.answer, {n: g for layer in passage.layers(parameters) for n, g in layer.merged().items()}


def _names(chain: Chain) -> list[str]:
    return [name for step in chain.steps if isinstance(step, Affine) for name in step.names]


def _searched(parameters: Parameters, shared: bool, inputs: Tensor) -> bool:
    """Return whether `gradients_once` applies: only the examples have derivatives, the network does not.

    Inside a transform of `torch.func` it does not apply, since the transform has its own rules.
    """
    still = shared and not any(p.requires_grad for p in parameters.values())
    return (
        still and torch.is_grad_enabled() and inputs.requires_grad and not torch._C._are_functorch_transforms_active()
    )


def gradients_once(
    chain: Chain, parameters: Parameters, inputs: Tensor, targets: Tensor, weights: Tensor, merged: bool
) -> Parameters:
    """Return `gradients` for parameters that all lanes share; differentiable once, with respect to inputs and targets."""
    grads = _Once.apply(chain, parameters, weights, merged, inputs, targets)
    return dict(zip(_names(chain), grads, strict=True))


class _Once(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        chain: Chain,
        parameters: Parameters,
        weights: Tensor,
        merged: bool,
        inputs: Tensor,
        targets: Tensor,
    ) -> tuple[Tensor, ...]:
        passage = chain.there_and_back(parameters, True, inputs, targets, weights)
        ctx.passage, ctx.merged, ctx.weights, ctx.targets = passage, merged, weights, targets
        found: list[Tensor] = []
        for layer in passage.layers(parameters):
            grads = layer.merged() if merged else layer.each()
            found += grads.values()
        return tuple(found)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *directions: Tensor) -> tuple[Tensor | None, ...]:
        along = _directions(ctx.passage.chain, ctx.merged, directions)
        by_inputs, by_targets = pulled(ctx.passage, ctx.weights, ctx.targets, along)
        return None, None, None, None, by_inputs, by_targets


class _AnswerAndGradients(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, chain: Chain, parameters: Parameters, cotangents: Tensor, inputs: Tensor
    ) -> tuple[Tensor, ...]:
        ctx.passage = chain.there_and_back_along(parameters, True, inputs, cotangents)
        layers = ctx.passage.layers(parameters)
        answer = ctx.passage.answer
        # The passes hold the output itself. Returned as it is, it would hold them in turn, and memory would grow.
        return (answer.view_as(answer), *(g for layer in layers for g in layer.merged().values()))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *directions: Tensor) -> tuple[Tensor | None, ...]:
        along = _directions(ctx.passage.chain, True, directions[1:])
        *tangents, _ = _tangents(ctx.passage, along)
        return None, None, None, _returned(ctx.passage, along, tangents, directions[0])


def _directions(chain: Chain, merged: bool, given: Sequence[Tensor]) -> dict[int, Direction]:
    rest = iter(given)
    return {
        i: Along(step, merged, *(next(rest) for _ in step.names))
        for i, step in enumerate(chain.steps)
        if isinstance(step, Affine)
    }


class Direction(Protocol):
    """A direction of one layer's weights."""

    def moved(self, done: Passed) -> Tensor:
        """Return the tangent of the layer's output along the direction."""

    def returned(self, delta: Tensor, entered: torch.Size) -> Tensor:
        """Return the derivative of <direction, gradient> with respect to the layer's input, through its gradient."""


def pulled(
    passage: ThereAndBack, weights: Tensor, targets: Tensor, along: Mapping[int, Direction]
) -> tuple[Tensor, Tensor]:
    """Return the derivatives of <R, gradients> by inputs (K, B, *s) and targets (K, B, classes).

    Args:
        passage: The passes from which the gradients follow.
        weights: (K, B).
        targets: (K, B, classes).
        along: {position of a layer with weights: R of the layer}, constants.
    """
    *tangents, tangent = _tangents(passage, along)
    chances = passage.chances
    assert tangent is not None and chances is not None  # noqa: S101 - for mypy: a chain has weights, a loss has chances
    weights = weights[..., None]
    mean = (chances * tangent).sum(-1, keepdim=True)
    by_targets = weights * (mean - tangent)
    found = weights * targets.sum(-1, keepdim=True) * chances * (tangent - mean)
    return _returned(passage, along, tangents, found), by_targets


def _tangents(passage: ThereAndBack, along: Mapping[int, Direction]) -> list[Tensor | None]:
    """Return the tangents that enter each step from the first one with weights, and that of the output, along R."""
    steps, passed, first = passage.chain.steps, passage.passed, passage.chain.first
    tangents: list[Tensor | None] = [None]
    for i in range(first, len(steps)):
        before, done = tangents[-1], passed[i]
        after = None if before is None else done.push(before)
        if i in along:
            own = along[i].moved(done)
            after = own if after is None else after.add_(own)
        tangents.append(after)
    return tangents


def _returned(
    passage: ThereAndBack, along: Mapping[int, Direction], tangents: Sequence[Tensor | None], found: Tensor
) -> Tensor:
    """Return the derivative (K, B, *s) by the inputs of <R, gradients>, plus that of a function of the output.

    Args:
        passage: The passes from which the gradients follow.
        along: R.
        tangents: Those of `_tangents` that enter the steps.
        found: The derivative (K, B, d) of both by the output.
    """
    steps, passed, first = passage.chain.steps, passage.passed, passage.chain.first
    for i in reversed(range(first, len(steps))):
        done, before, delta = passed[i], tangents[i - first], passage.deltas[i - first]
        found = (done.pull or done.back)(found)
        if i in along:
            found = found + along[i].returned(delta, found.shape)
        elif done.bend is not None and before is not None:
            found = found + done.bend(before, delta)
    for done in reversed(passed[:first]):
        found = done.back(found)
    return found.movedim(-1, 2) if found.dim() == 5 else found


@dataclass(frozen=True)
class Along:
    """A direction as one tensor for each parameter.

    Args:
        merged: Whether each lane has one direction, else each example.
        weight: (K, 1, *p) if `merged`, else (K, B, *p).
        bias: Likewise.
    """

    step: Affine
    merged: bool
    weight: Tensor
    bias: Tensor | None = None

    def moved(self, done: Passed) -> Tensor:
        """Return the tangent of the layer's output along the direction."""
        assert done.columns is not None  # noqa: S101 - for mypy: a layer with weights has columns
        bias = None if self.bias is None else self.bias.flatten(0, 1)
        return self.step.moved(self._lanes(done.columns), self.weight.flatten(0, 1), bias).reshape(done.answer.shape)

    def returned(self, delta: Tensor, entered: torch.Size) -> Tensor:
        """Return the derivative of <direction, gradient> with respect to the layer's input, through its gradient."""
        found = self.step.returned(self._lanes(delta), self.weight.flatten(0, 1), False, entered)
        return found.reshape(entered)

    def _lanes(self, each: Tensor) -> Tensor:
        """Return (K, B, ...) as lanes with one direction each, (K, B, ...) or (K * B, 1, ...)."""
        return each if self.merged else each.flatten(0, 1)[:, None]
