"""The squared distance of a chain's gradient from an observed one, without the gradients of linear layers.

The gradient of a linear layer for one example is a product of two vectors, and a distance needs only inner products with them.
With orthonormal columns U and V, an observed gradient G = U S V^T, factors d = a U^T + d' and h = b V^T + h':

    |d^T h - G|^2 = |a^T b - S|^2 + |d'|^2 |b|^2 + |a|^2 |h'|^2 + |d'|^2 |h'|^2

No term is negative, so that nothing cancels, and the distance is as exact as a sum of squared differences. A layer with 62 classes
and 768 features then reads some thousand numbers for each example, not nine times 47,616. For several examples, the products
between them would cancel.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from leakbench.core.types import Parameters
from leakbench.engine.chain import Chain, ThereAndBack
from leakbench.engine.once import Along, Direction, pulled
from leakbench.engine.steps import Affine

__all__ = ["Observed", "observed", "squared_distance"]

SPARE = 4
"""Number of directions in which a gradient is tried beyond the one of an example."""

ROUNDING = 8
"""Largest length of a remainder, in units of the rounding error of the whole, that counts as zero."""

NARROW = 4
"""A matrix whose sides differ by this factor is factored at any rank, since the shorter side bounds it."""


@dataclass(frozen=True)
class Factors:
    """Matrices G = U S V^T of K lanes, with orthonormal columns of U and V.

    Args:
        left: U (K, O, r).
        middle: S (K, r, q).
        right: V (K, I, q).
    """

    left: Tensor
    middle: Tensor
    right: Tensor

    def of(self, lanes: Tensor | slice) -> Factors:
        """Return the matrices of some lanes."""
        return Factors(self.left[lanes], self.middle[lanes], self.right[lanes])


@dataclass(frozen=True)
class Observed:
    """Observed gradients of K lanes.

    Args:
        gradients: {p: (K, *p)}, without the weights in `factors`.
        factors: {weight of a linear layer: its gradient}.
    """

    gradients: Parameters
    factors: dict[str, Factors]

    def of(self, lanes: Tensor | slice) -> Observed:
        """Return the gradients of some lanes."""
        factors = {name: found.of(lanes) for name, found in self.factors.items()}
        return Observed({name: g[lanes] for name, g in self.gradients.items()}, factors)


def observed(chain: Chain, gradients: Parameters) -> Observed:
    """Return observed gradients {p: (K, *p)}, those of linear layers factored if their rank is low or one of their sides is short.

    The rank is that of all lanes together, so that noise in one lane changes the last digits of the others.
    """
    linear = [step.weight for step in chain.steps if isinstance(step, Affine) and step.kernel is None]
    exact = [name for name in linear if gradients[name].dtype in (torch.float32, torch.float64)]
    factors = {name: found for name in exact if (found := _factored(gradients[name])) is not None}
    return Observed({name: g for name, g in gradients.items() if name not in factors}, factors)


def _factored(matrices: Tensor) -> Factors | None:
    """Return the factors of (K, O, I); None if they would have as many numbers as the matrices."""
    short, long = sorted(matrices.shape[1:])
    if (tried := 1 + SPARE) < short // 2:
        directions = torch.randn(matrices.shape[2], tried, generator=torch.Generator().manual_seed(0))
        left = torch.linalg.qr(matrices @ directions.to(matrices)).Q
        rest = matrices - left @ (left.mT @ matrices)
        least = ROUNDING * torch.finfo(matrices.dtype).eps * torch.linalg.matrix_norm(matrices)
        if bool((torch.linalg.matrix_norm(rest) <= least).all()):
            return _by_left(matrices, left)
    if NARROW * short > long:
        return None
    if matrices.shape[1] > matrices.shape[2]:
        turned = _factored(matrices.mT)
        return None if turned is None else Factors(turned.right, turned.middle.mT, turned.left)
    return _by_left(matrices, torch.eye(matrices.shape[1]).to(matrices).expand(len(matrices), -1, -1))


def _by_left(matrices: Tensor, left: Tensor) -> Factors:
    """Return the factors for U (K, O, r) whose columns span those of the matrices."""
    right, middle = torch.linalg.qr(matrices.mT @ left)
    return Factors(left, middle.mT.contiguous(), right)


def squared_distance(
    chain: Chain, parameters: Parameters, seen: Observed, inputs: Tensor, targets: Tensor, weights: Tensor
) -> Tensor:
    """Return the squared L2 distances (K,) of the sums of the examples' gradients from the observed ones.

    Differentiable once, with respect to inputs and targets. All lanes share the parameters; the arguments are those of
    `Chain.gradient`.
    """
    found: Tensor = _Distance.apply(chain, parameters, seen, weights, inputs, targets)
    return found


class _Distance(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        chain: Chain,
        parameters: Parameters,
        seen: Observed,
        weights: Tensor,
        inputs: Tensor,
        targets: Tensor,
    ) -> Tensor:
        passage = chain.there_and_back(parameters, True, inputs, targets, weights)
        apart, squares = _apart(passage, parameters, seen)
        ctx.passage, ctx.apart, ctx.weights, ctx.targets = passage, apart, weights, targets
        return squares

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        by_inputs, by_targets = pulled(ctx.passage, ctx.weights, ctx.targets, ctx.apart)
        scale = 2 * gradients[0]
        by_inputs = by_inputs * scale.reshape(-1, *[1] * (by_inputs.dim() - 1))
        return None, None, None, None, by_inputs, by_targets * scale[:, None, None]


def _apart(passage: ThereAndBack, parameters: Parameters, seen: Observed) -> tuple[dict[int, Direction], Tensor]:
    """Return {layer: its gradient minus the observed one}, and the squared lengths (K,) of all together."""
    numbers = [i for i, step in enumerate(passage.chain.steps) if isinstance(step, Affine)]
    apart: dict[int, Direction] = {}
    squares: list[Tensor] = []
    for i, layer in zip(numbers, passage.layers(parameters), strict=True):
        name, bias = layer.layer.weight, layer.layer.bias
        if name in seen.factors:
            rest = None if bias is None else layer.sums.sum(1, keepdim=True) - seen.gradients[bias][:, None]
            far = _Far.of(seen.factors[name], layer.deltas[:, :, 0], layer.columns[:, :, 0], rest)
            apart[i] = far
            squares += [far.square(), *([] if rest is None else [rest.square().sum((1, 2))])]
        else:
            rests = [g - seen.gradients[n][:, None] for n, g in layer.merged().items()]
            apart[i] = Along(layer.layer, True, *rests)
            squares += [torch.linalg.vecdot(each.flatten(1), each.flatten(1)) for each in rests]
    return apart, torch.stack(squares).sum(0)


@dataclass(frozen=True)
class _Far:
    """The gradient d^T h of a linear layer minus the observed U S V^T.

    Args:
        factors: The observed gradient.
        within: (a, b), the parts (K, B, r) and (K, B, q) of d and h in the columns of U and V.
        without: (d', h'), the rest.
        middle: a^T b - S.
        products: (a a^T, b b^T, d' d'^T, h' h'^T), (K, B, B) each.
        bias: The bias's gradient minus the observed one, (K, 1, O); None without a bias.
    """

    factors: Factors
    within: tuple[Tensor, Tensor]
    without: tuple[Tensor, Tensor]
    middle: Tensor
    products: tuple[Tensor, Tensor, Tensor, Tensor]
    bias: Tensor | None

    @classmethod
    def of(cls, factors: Factors, delta: Tensor, entered: Tensor, bias: Tensor | None) -> _Far:
        """Return the difference for d = `delta` (K, B, O) and h = `entered` (K, B, I)."""
        a, b = delta @ factors.left, entered @ factors.right
        d, h = delta - a @ factors.left.mT, entered - b @ factors.right.mT
        products = (a @ a.mT, b @ b.mT, d @ d.mT, h @ h.mT)
        return cls(factors, (a, b), (d, h), a.mT @ b - factors.middle, products, bias)

    def square(self) -> Tensor:
        """Return its squared length (K,), without the bias."""
        aa, bb, dd, hh = self.products
        return self.middle.square().sum((1, 2)) + (dd * (bb + hh) + aa * hh).sum((1, 2))

    def moved(self, done: Any) -> Tensor:
        """Return what it makes of h: the tangent (K, B, O) of the layer's output along it."""
        (a, b), (d, _), (_, bb, _, hh) = self.within, self.without, self.products
        found = (b @ self.middle.mT + hh @ a) @ self.factors.left.mT + (hh + bb) @ d
        return found if self.bias is None else found + self.bias

    def returned(self, delta: Tensor, entered: torch.Size) -> Tensor:
        """Return what its transpose makes of d: the derivative (K, B, I) by the layer's input."""
        (a, b), (_, h), (aa, _, dd, _) = self.within, self.without, self.products
        return (a @ self.middle + dd @ b) @ self.factors.right.mT + (aa + dd) @ h
