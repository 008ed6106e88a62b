"""The squared distance of one example's gradient from an observed one, and its cosine, without the gradients of linear layers.

The gradient of a linear layer for one example is a product of two vectors, and a distance needs only inner products with them.
With orthonormal columns U and V, an observed gradient G = U S V^T, and d = U a + d', h = V b + h':

    |d h^T - G|^2 = |a b^T - S|^2 + |d'|^2 (|b|^2 + |h'|^2) + |a|^2 |h'|^2

The layer's gradient has the squared length |d|^2 |h|^2. No term is negative, so that nothing cancels between them. A layer with
62 classes and 768 features then reads some thousand numbers for each example, not nine times 47,616. The factors and these
products are in float64: close to the truth, d' and h' are small differences.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from leakbench.core.types import Parameters
from leakbench.engine.chain import Chain
from leakbench.engine.factored import Factored
from leakbench.engine.once import Along, Direction, pulled
from leakbench.engine.steps import Affine, Passed

__all__ = ["SHORTEST", "Observed", "observed", "one_minus_cosine", "squared_distance"]

SPARE = 4
"""Number of directions in which a gradient is tried beyond the one of an example."""

STORED, COMPUTED = 2, 64
"""Largest length of a remainder that counts as zero, relative to the whole: so many times the rounding error of the matrix's type,
plus so many times that of float64, in which the remainder is computed."""

SHORTEST = 1e-30
"""Square of the length below which a gradient has no direction: in float32, the square of its numbers may be zero."""

NARROW = 4
"""A matrix whose sides differ by this factor is factored at any rank, since the shorter side bounds it."""


@dataclass(frozen=True)
class Factors:
    """Matrices G = U S V^T of K lanes in float64, with orthonormal columns of U and V.

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
        length: Their squared lengths (K,), in float64.
    """

    gradients: Parameters
    factors: dict[str, Factors]
    length: Tensor

    def times(self, factors: Tensor) -> Observed:
        """Return the gradients of each lane times a number (K,)."""
        wide = factors.double()[:, None, None]
        products = {name: replace(f, middle=f.middle * wide) for name, f in self.factors.items()}
        gradients = {name: g * _like(factors, g) for name, g in self.gradients.items()}
        return Observed(gradients, products, self.length * factors.square())

    def of(self, lanes: Tensor | slice) -> Observed:
        """Return the gradients of some lanes."""
        factors = {name: some.of(lanes) for name, some in self.factors.items()}
        return Observed({name: g[lanes] for name, g in self.gradients.items()}, factors, self.length[lanes])


def observed(chain: Chain, gradients: Parameters) -> Observed:
    """Return observed gradients {p: (K, *p)}, those of linear layers factored if their rank is low or one of their sides is short.

    A layer is factored in all lanes or in none, so that noise in one lane changes the last digits of the others.
    """
    linear = [step.weight for step in chain.steps if isinstance(step, Affine) and step.kernel is None]
    exact = [name for name in linear if gradients[name].dtype in (torch.float32, torch.float64)]
    factors = {name: some for name in exact if (some := _factored(gradients[name])) is not None}
    length = torch.stack([g.flatten(1).double().square().sum(1) for g in gradients.values()]).sum(0)
    return Observed({name: g for name, g in gradients.items() if name not in factors}, factors, length)


def _factored(matrices: Tensor) -> Factors | None:
    """Return the factors of (K, O, I); None if they would have as many numbers as the matrices."""
    if matrices.shape[1] > matrices.shape[2]:
        turned = _factored(matrices.mT)
        return None if turned is None else Factors(turned.right, turned.middle.mT, turned.left)
    short, long = matrices.shape[1:]
    if (tried := 1 + SPARE) < short // 2:
        directions = torch.randn(long, tried, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        low = _of_low_rank(matrices, directions.to(matrices.device))
        if low is not None:
            return low
    if NARROW * short > long:
        return None
    whole = torch.eye(short, dtype=torch.float64, device=matrices.device)
    return _joined([_by_left(matrix.double(), whole) for matrix in matrices])


def _of_low_rank(matrices: Tensor, directions: Tensor) -> Factors | None:
    """Return the factors if the images of `directions` (I, t) span the columns of every matrix, else None."""
    lanes = []
    rounding = STORED * torch.finfo(matrices.dtype).eps + COMPUTED * torch.finfo(torch.float64).eps
    for matrix in matrices:  # One after the other, to save memory.
        exact = matrix.double()
        left = torch.linalg.qr(exact @ directions).Q
        rest = exact - left @ (left.mT @ exact)
        # Not `>`, since a lane with NaN is not factored either.
        if not bool(torch.linalg.matrix_norm(rest) <= rounding * torch.linalg.matrix_norm(exact)):
            return None
        lanes.append(_by_left(exact, left))
    return _joined(lanes)


def _by_left(matrix: Tensor, left: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return U, S and V of (O, I) for U (O, r) whose columns span those of the matrix."""
    right, middle = torch.linalg.qr(matrix.mT @ left)
    return left, middle.mT, right


def _joined(lanes: list[tuple[Tensor, Tensor, Tensor]]) -> Factors:
    return Factors(*(torch.stack(each) for each in zip(*lanes, strict=True)))


def squared_distance(chain: Chain, parameters: Parameters, seen: Observed, inputs: Tensor, targets: Tensor) -> Tensor:
    """Return the squared L2 distances (K,) of the examples' gradients from the observed ones.

    Differentiable once, with respect to inputs and targets.

    Args:
        chain: The layers of the network.
        parameters: {p: (*p)}, the same for all lanes.
        seen: The observed gradients of the K lanes.
        inputs: (K, 1, *s).
        targets: (K, 1, classes).

    Raises:
        ValueError: For several examples in a lane, between whose gradients terms would cancel.
    """
    _refuse_several(inputs)
    return torch.as_tensor(_SquaredDistance.apply(chain, parameters, seen, inputs, targets))


def one_minus_cosine(chain: Chain, parameters: Parameters, seen: Observed, inputs: Tensor, targets: Tensor) -> Tensor:
    """Return 1 - <g, o> / (|g| |o|) (K,) of the examples' gradients g and the observed ones o; arguments as `squared_distance`.

    It is computed as |g - k o|^2 / (2 |g|^2) with k = |g| / |o|, which is as exact for nearly equal directions as |g - o|^2 for
    nearly equal gradients. It is 1 for a gradient without a direction.
    """
    _refuse_several(inputs)
    return torch.as_tensor(_OneMinusCosine.apply(chain, parameters, seen, inputs, targets))


def _refuse_several(inputs: Tensor) -> None:
    if inputs.shape[1] != 1:
        raise ValueError(f"inputs: got {inputs.shape[1]} examples for each gradient, expected 1")


class _SquaredDistance(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, chain: Chain, parameters: Parameters, seen: Observed, inputs: Tensor, targets: Tensor
    ) -> Tensor:
        owns = _owns(ctx, chain, parameters, seen, inputs, targets)
        ctx.rests = {i: own.minus(seen) for i, own in owns.items()}
        return _sum([square for rest in ctx.rests.values() for square in rest.squares()], inputs)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        along: dict[int, Direction] = {i: rest.along(2 * gradients[0]) for i, rest in ctx.rests.items()}
        return None, None, None, *pulled(ctx.passage, ctx.weights, ctx.targets, along)


class _OneMinusCosine(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, chain: Chain, parameters: Parameters, seen: Observed, inputs: Tensor, targets: Tensor
    ) -> Tensor:
        owns = _owns(ctx, chain, parameters, seen, inputs, targets)
        length = _sum([square for own in owns.values() for square in own.squares()], inputs)
        # An infinite square has overflowed.
        empty = (length < SHORTEST) | (seen.length < SHORTEST) | (length == torch.inf)
        length = length.masked_fill(empty, torch.inf)
        scaled = seen.times((length / seen.length.to(length)).sqrt().masked_fill(empty, 0.0))
        ctx.rests = {i: own.minus(scaled) for i, own in owns.items()}
        apart = _sum([square for rest in ctx.rests.values() for square in rest.squares()], inputs)
        value: Tensor = (apart / (2 * length)).masked_fill(empty, 1.0)
        ctx.save_for_backward(length, value)
        return value

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        # By g: (g - k o) / |g|^2 - (1 - cosine) g / |g|^2.
        length, value = ctx.saved_tensors
        apart = gradients[0] / length
        along: dict[int, Direction] = {i: rest.along(apart, -apart * value) for i, rest in ctx.rests.items()}
        return None, None, None, *pulled(ctx.passage, ctx.weights, ctx.targets, along)


def _sum(squares: list[Tensor], like: Tensor) -> Tensor:
    total: Tensor = torch.stack([square.to(like) for square in squares]).sum(0)
    return total


def _square(each: Tensor) -> Tensor:
    flat = each.flatten(1)
    square: Tensor = torch.linalg.vecdot(flat, flat)
    return square


def _like(numbers: Tensor, gradients: Tensor) -> Tensor:
    """Return numbers (K,) in a shape that multiplies gradients (K, ...)."""
    return numbers.to(gradients).reshape(-1, *[1] * (gradients.dim() - 1))


def _owns(
    ctx: Any, chain: Chain, parameters: Parameters, seen: Observed, inputs: Tensor, targets: Tensor
) -> dict[int, _Own]:
    """Return {position of a layer with weights: its gradient}; keep for the way back what `pulled` needs."""
    ctx.weights, ctx.targets = inputs.new_ones(inputs.shape[:2]), targets
    ctx.passage = chain.there_and_back(parameters, True, inputs, targets, ctx.weights)
    numbers = [i for i, step in enumerate(chain.steps) if isinstance(step, Affine)]
    owns = {}
    for i, layer in zip(numbers, ctx.passage.layers(parameters), strict=True):
        step = layer.layer
        without = {} if step.bias is None else {step.bias: layer.sums}
        owns[i] = _Own(layer, without if step.weight in seen.factors else layer.merged())
    return owns


@dataclass(frozen=True)
class _Own:
    """The gradient g of one layer.

    Args:
        layer: Its factors.
        grads: {p: (K, 1, *p)}, without a weight that is compared by its factors.
    """

    layer: Factored
    grads: Parameters

    def squares(self) -> list[Tensor]:
        """Return squared lengths (K,) whose sum is |g|^2."""
        squares = [_square(g) for g in self.grads.values()]
        if self.layer.layer.weight not in self.grads:
            d, h = (rows[:, 0, 0].double().square().sum(1) for rows in (self.layer.deltas, self.layer.columns))
            squares.append(d * h)
        return squares

    def minus(self, seen: Observed) -> _Rest:
        """Return g minus the observed gradient."""
        layer, pairs = self.layer, {n: _Pair(g, g - seen.gradients[n][:, None]) for n, g in self.grads.items()}
        if layer.layer.weight in pairs:
            return _Tensors(layer.layer, tuple(pairs.values()))
        factors = seen.factors[layer.layer.weight]
        return _Product.of(factors, layer.deltas[:, 0, 0], layer.columns[:, 0, 0], next(iter(pairs.values()), None))


class _Rest(Protocol):
    """The gradient g of one layer minus an observed one o, for K lanes."""

    def squares(self) -> list[Tensor]:
        """Return squared lengths (K,) whose sum is |g - o|^2."""

    def along(self, apart: Tensor, length: Tensor | None = None) -> Direction:
        """Return the direction `apart` (K,) times (g - o), plus `length` (K,) times g if given."""


@dataclass(frozen=True)
class _Pair:
    """The gradient g of one tensor (K, 1, *p), and its difference from the observed one."""

    own: Tensor
    rest: Tensor

    def along(self, apart: Tensor, length: Tensor | None) -> Tensor:
        """Return `apart` times the difference plus `length` times g."""
        part = self.rest * _like(apart, self.rest)
        return part if length is None else part.addcmul_(self.own, _like(length, self.own))


@dataclass(frozen=True)
class _Tensors:
    """The difference as one tensor for each parameter."""

    layer: Affine
    pairs: tuple[_Pair, ...]

    def squares(self) -> list[Tensor]:
        """See `_Rest`."""
        return [_square(pair.rest) for pair in self.pairs]

    def along(self, apart: Tensor, length: Tensor | None = None) -> Direction:
        """See `_Rest`."""
        return Along(self.layer, True, *(pair.along(apart, length) for pair in self.pairs))


@dataclass(frozen=True)
class _Product:
    """The gradient d h^T of a linear layer minus the observed U S V^T.

    Args:
        factors: The observed gradient.
        a, b: The coordinates (K, r) of d in the columns of U, and (K, q) of h in those of V.
        d, h: What is left of d (K, O) and of h (K, I).
        sizes: (|a|^2, |b|^2, |d'|^2, |h'|^2), each (K, 1).
        bias: The same of the bias; None without a bias.
    """

    factors: Factors
    a: Tensor
    b: Tensor
    d: Tensor
    h: Tensor
    sizes: tuple[Tensor, ...]
    bias: _Pair | None

    @classmethod
    def of(cls, factors: Factors, delta: Tensor, entered: Tensor, bias: _Pair | None) -> _Product:
        """Return the difference for d = `delta` (K, O) and h = `entered` (K, I)."""
        d, h = delta.double(), entered.double()
        a, b = _times(d, factors.left), _times(h, factors.right)
        d, h = d - _times(a, factors.left.mT), h - _times(b, factors.right.mT)
        return cls(factors, a, b, d, h, tuple(x.square().sum(1, keepdim=True) for x in (a, b, d, h)), bias)

    def squares(self) -> list[Tensor]:
        """See `_Rest`; that of the weight is in float64."""
        a, b, d, h = self.sizes
        middle = self.a[:, :, None] * self.b[:, None] - self.factors.middle
        weight = middle.square().sum((1, 2)) + (d * (b + h) + a * h)[:, 0]
        return [weight] if self.bias is None else [weight, _square(self.bias.rest)]

    def along(self, apart: Tensor, length: Tensor | None = None) -> Direction:
        """See `_Rest`."""
        less = apart.double()[:, None]
        times = less if length is None else less + length.double()[:, None]
        middle = (times * self.a)[:, :, None] * self.b[:, None] - less[:, :, None] * self.factors.middle
        bias = None if self.bias is None else self.bias.along(apart, length)
        return _AlongProduct(self, middle, tuple(times * size for size in self.sizes), bias)


@dataclass(frozen=True)
class _AlongProduct:
    """The direction t d h^T - s U S V^T of a linear layer's weights.

    Args:
        rest: d, h, U and V.
        middle: t a b^T - s S, (K, r, q).
        sizes: t times those of `rest`.
        bias: The direction of the bias, (K, 1, O); None without a bias.
    """

    rest: _Product
    middle: Tensor
    sizes: tuple[Tensor, ...]
    bias: Tensor | None

    def moved(self, done: Passed) -> Tensor:
        """Return what it makes of h: the tangent (K, 1, O) of the layer's output along it."""
        of, (_, b, _, h) = self.rest, self.sizes
        inside = _times(of.b, self.middle.mT) + h * of.a
        found = (_times(inside, of.factors.left.mT) + (h + b) * of.d)[:, None].to(done.answer)
        return found if self.bias is None else found + self.bias

    def returned(self, delta: Tensor, entered: torch.Size) -> Tensor:
        """Return what its transpose makes of d: the derivative (K, 1, I) by the layer's input."""
        of, (a, _, d, _) = self.rest, self.sizes
        inside = _times(of.a, self.middle) + d * of.b
        return (_times(inside, of.factors.right.mT) + (a + d) * of.h)[:, None].to(delta)


def _times(rows: Tensor, matrices: Tensor) -> Tensor:
    """Return rows (K, n) times one matrix each (K, n, m)."""
    return torch.bmm(rows[:, None], matrices)[:, 0]
