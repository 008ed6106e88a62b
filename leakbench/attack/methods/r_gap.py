"""R-GAP: from the last layer to the first, linear equations give the input of each layer of a network, for one example.

The input x of a layer with the output z = W x + b solves two kinds of linear equations: W x = z - b, where z is known from the
layer behind, and K x = dL/dW, where K follows from dL/dz (Zhu and Blaschko, ICLR 2021, section 3.3). Then x gives the output of
the layer before through the inverse of the activation, and the weights pass dL/dz back.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn

from leakbench.attack.doubts import RANK
from leakbench.attack.features import read, readable
from leakbench.attack.front import Front
from leakbench.attack.looks import averaged
from leakbench.attack.needs import PLAIN, Needs
from leakbench.attack.one_step import answered_at_once, likeliest
from leakbench.core.answers import Reconstruction
from leakbench.core.errors import InputError
from leakbench.core.part import Positive, part
from leakbench.core.task import is_classification
from leakbench.core.types import Generators, Parameters
from leakbench.engine.patches import folded, patches
from leakbench.engine.steps import Affine, Crop, Flatten, Pointwise, Step
from leakbench.federated.view import View

__all__ = ["RGap"]

REFINEMENTS = 3
"""Number of corrections by the residual, which give the digits that the normal equations lose."""

POWERS = 5
"""Number of power iterations for the smallest and the largest singular value."""

ACTIVE = 1e-6
"""Output of a ReLU, as a share of the largest one, above which it is active."""

EDGE = 1e-6
"""Distance of the output of a bounded activation from its bounds, within which its input is unknown."""

MOST = 8192
"""Largest number of inputs of a layer: its matrix of squares takes .5 GB, and its eigenvectors some minutes."""

TINY = 1e-300
"""Keeps a derivative of zero from dividing by zero."""


@part("method.r_gap")
class RGap:
    """Solve the layers of a chain from the last one to the first (R-GAP: Zhu and Blaschko, ICLR 2021, algorithm 1).

    The recursion begins at the first fully connected layer that `leakbench.attack.features` reads. A last layer without a bias is
    enough (section 3.2, here for the softmax). Each layer before it is one system of linear equations, solved by least squares in
    float64. The equations of the gradient contain the rounding errors of one layer, those of the weights the errors of all layers
    behind it. So the former are scaled to `trust` times the length of the latter.

    The activations are LeakyReLU, sigmoid, tanh or ReLU. Where a ReLU is zero its input is unknown, and the equations of these
    outputs are left out. If the equations of a layer do not determine its input, the shortest solution is taken and the
    reconstruction has the doubt `rank`. The paper counts equations (section 4, rank analysis); here the rank is computed.
    """

    needs: ClassVar[Needs] = Needs(alone=True, kinds=PLAIN)

    trust: Annotated[
        Positive, Field(description="Scale of the equations of the gradient over those of the weights.")
    ] = 30.0
    rank: Annotated[
        Positive,
        Field(description="Smallest singular value, as a share of the largest one, of a direction that is determined."),
    ] = 1e-6

    def applies(self, view: View) -> bool:
        """Return whether the recursion can begin and pass every layer."""
        front = _front(view) if view.examples == 1 and readable(view) is not None else None
        return front is not None and front.largest <= MOST

    def __call__(self, views: tuple[View, ...], rngs: Generators) -> Reconstruction:
        """Reconstruct V victims from the mean of the observations of a release, clamped to [0, 1].

        Of several roots of the last layer, and of several releases, the result is the one whose gradients are nearest to the
        observed ones. The certainty is minus their squared distance.

        Returns:
            NaN if the last layer could not be read.

        Raises:
            InputError: For a network that is not a chain of invertible layers, for layers with too many inputs, and for a view that
                shows no readable layer.
        """
        return likeliest([answer for view, _ in averaged(views) for answer in self._answers(view, rngs)])

    def _answers(self, view: View, rngs: Generators) -> list[Reconstruction]:
        if not is_classification(view.network.model):
            raise InputError(
                "attack: r_gap reads the last layer of a network of classes, got other targets; leave out --targets and --loss, or"
                " choose another attack"
            )
        layer = readable(view) if view.examples == 1 else None
        if layer is None:
            raise InputError(
                "attack: r_gap reads the gradient of one example, without noise, at a fully connected layer behind others; got a"
                f" view that does not show one; {f'use {view.alone_by}, or ' if view.examples > 1 else ''}choose another attack"
            )
        front = _front(view)
        if front is None:
            raise InputError(
                "attack: r_gap inverts convolutions, linear layers, LeakyReLU, ReLU, sigmoid and tanh; this network has other"
                " layers, such as max pooling, a norm or a shortcut; use --leak-model cnn6, or choose another attack"
            )
        if front.largest > MOST:
            raise InputError(
                f"attack: r_gap solves equations for all inputs of a layer, got {front.largest}, expected at most {MOST}; use a"
                " smaller --size, or choose another attack"
            )
        features = read(view, layer, rngs)
        answers = []
        for entered, cotangents, labels in zip(features.entered, features.cotangents, features.labels, strict=True):
            victims = self._solved(front, view, entered[:, 0].double(), cotangents[:, 0].double())
            inputs = torch.stack([victim.values for victim in victims]).to(view.like)
            inputs = inputs.movedim(-1, 1) if inputs.dim() == 4 else inputs
            answer = answered_at_once(
                (view,), inputs.reshape(view.victims, 1, *view.shape).clamp(0, 1), rngs, labels=labels
            )
            lacking = torch.tensor([victim.lack > 0 for victim in victims], device=inputs.device)
            answers.append(dataclasses.replace(answer, doubts={RANK: lacking}))
        return answers

    def _solved(self, front: _Front, view: View, entered: Tensor, cotangents: Tensor) -> list[_Victim]:
        """Return the victims at the network's input, from the inputs (V, d) of the layer behind and the derivatives by them."""
        victims = [_Victim.at(x, delta) for x, delta in zip(entered, cotangents, strict=True)]
        parameters = [front.parameters(view, lane) for lane in range(view.victims)]
        for step, shape in zip(reversed(front.steps), reversed(front.shapes), strict=True):
            layer: _Layer | None = None
            for lane, victim in enumerate(victims):
                view.tick()
                if not isinstance(step, Affine):
                    victims[lane] = victim.before(step, shape)
                elif victim.values.isfinite().all():
                    if layer is None or not torch.equal(layer.weight, parameters[lane][step.weight]):
                        layer = _Layer.of(step, shape, parameters[lane])
                    gradient = view.update[front.prefix + step.weight][lane].double()
                    victims[lane] = layer.before(victim, gradient, self.trust, self.rank)
                else:
                    unknown = victim.values.new_full(shape, torch.nan)
                    victims[lane] = _Victim.at(unknown, unknown)
        return victims


@dataclass(frozen=True)
class _Front:
    """The layers before a fully connected layer.

    Args:
        steps: The layers, first to last.
        shapes: Shape of the input of each, pictures with their channels last.
        prefix: Prefix of their parameters' names in the network.
    """

    steps: tuple[Step, ...]
    shapes: tuple[tuple[int, ...], ...]
    prefix: str

    @property
    def largest(self) -> int:
        """Largest number of inputs of a layer with weights."""
        each = zip(self.steps, self.shapes, strict=True)
        return max((math.prod(shape) for step, shape in each if isinstance(step, Affine)), default=0)

    def parameters(self, view: View, lane: int) -> Parameters:
        """Return the parameters of the layers for one victim, in float64."""
        own = [name for step in self.steps if isinstance(step, Affine) for name in step.names]
        sent = {name: view.network.parameters[self.prefix + name] for name in own}
        return {name: (p if view.network.shared else p[lane]).double() for name, p in sent.items()}


def _front(view: View) -> _Front | None:
    """Return the layers before the one that `readable` returns; None if one of them has no inverse."""
    layer = readable(view)
    assert layer is not None  # noqa: S101 - for mypy: the caller has asked
    front = Front.of(dataclasses.replace(view.network, engine="fast"), layer, view.shape)
    if front.chain is None or not all(_invertible(step) for step in front.chain.steps):
        return None
    steps, shapes = front.chain.steps, []
    parameters = _Front(steps, (), front.prefix).parameters(view, 0)
    entering = torch.zeros(1, 1, *view.shape, dtype=torch.float64, device=view.like.device)
    entering = entering.movedim(2, -1) if entering.dim() == 5 else entering
    for step in steps:
        shapes.append(tuple(entering.shape[2:]))
        entering = step(parameters, True, entering).answer
    return _Front(steps, tuple(shapes), front.prefix)


def _invertible(step: Step) -> bool:
    if isinstance(step, Pointwise):
        function = step.function
        leaky = isinstance(function, nn.LeakyReLU) and function.negative_slope > 0
        return leaky or isinstance(function, nn.ReLU | nn.Sigmoid | nn.Tanh)
    return isinstance(step, Affine | Flatten | Crop)


@dataclass(frozen=True)
class _Victim:
    """The numbers of one victim between two layers.

    Args:
        values: The numbers that pass, of any shape.
        delta: Derivative of the loss by them.
        known: bool, which of `values` are known.
        lack: Number of unknowns of the layers behind that no equation determines.
    """

    values: Tensor
    delta: Tensor
    known: Tensor
    lack: int = 0

    @classmethod
    def at(cls, values: Tensor, delta: Tensor, lack: int = 0) -> _Victim:
        """Return a victim with all values known."""
        return cls(values, delta, torch.ones_like(values, dtype=torch.bool), lack)

    def before(self, step: Step, shape: tuple[int, ...]) -> _Victim:
        """Return the victim at the input, of a shape, of a layer without weights."""
        if isinstance(step, Pointwise):
            values, slope, known = _inverse(step.function, self.values)
            return _Victim(values, self.delta * slope, self.known & known, self.lack)
        back = step({}, True, self.values.new_zeros(1, 1, *shape)).back
        # Rows and columns that a crop leaves out stay unknown.
        values, delta, known = (
            back(each.to(self.values)[None, None])[0, 0] for each in (self.values, self.delta, self.known)
        )
        return _Victim(values, delta, known > 0, self.lack)


def _inverse(function: nn.Module, values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the inputs of an activation for its outputs, its derivatives there, and which inputs are known."""
    if isinstance(function, nn.LeakyReLU):
        slope = torch.where(values < 0, function.negative_slope, 1.0).to(values)
        return values / slope, slope, torch.ones_like(values, dtype=torch.bool)
    if isinstance(function, nn.ReLU):
        active = values > ACTIVE * values.amax()
        return values, active.to(values), active
    if isinstance(function, nn.Sigmoid):
        inside = values.clamp(EDGE, 1 - EDGE)
        return inside.logit(), inside * (1 - inside), values == inside
    inside = values.clamp(EDGE - 1, 1 - EDGE)
    return inside.atanh(), 1 - inside.square(), values == inside


@dataclass(frozen=True)
class _Layer:
    """A layer with weights. Its n inputs are ordered by place, then by channel; a linear layer has one place.

    Args:
        shape: Shape of the input.
        weight: Its weight.
        bias: Its bias, 0 without one.
        matrix: (O, k * k * C), the weight in the order of the columns of `leakbench.engine.patches.patches`.
        reads: (P, k * k), the places that each output reads; the number of places marks the padding.
        normal: (n, n), the product of the layer's map with itself.
    """

    step: Affine
    shape: tuple[int, ...]
    weight: Tensor
    bias: Tensor | float
    matrix: Tensor
    reads: Tensor
    normal: Tensor

    @classmethod
    def of(cls, step: Affine, shape: tuple[int, ...], parameters: Parameters) -> _Layer:
        """Return the layer for inputs of a shape."""
        weight = parameters[step.weight]
        bias = 0.0 if step.bias is None else parameters[step.bias]
        matrix, reads = weight, torch.zeros(1, 1, dtype=torch.int64, device=weight.device)
        if step.kernel is not None:
            matrix = weight.movedim(-3, -1).flatten(1)
            places = math.prod(shape[:2])
            numbers = 1.0 + torch.arange(places, dtype=weight.dtype, device=weight.device)
            reads = patches(numbers.reshape(1, *shape[:2], 1), step.kernel).flatten(0, 2).long() - 1
            reads = reads.where(reads >= 0, places)
        product = (matrix.mT @ matrix).expand(len(reads), -1, -1)
        return cls(step, shape, weight, bias, matrix, reads, _summed(product, reads, math.prod(shape[:-1])))

    def before(self, victim: _Victim, gradient: Tensor, trust: float, rank: float) -> _Victim:
        """Return the victim at the input of the layer, by least squares.

        Args:
            victim: The victim at the output.
            gradient: dL/dW.
            trust: See `RGap`.
            rank: See `RGap`.
        """
        sent, size = {self.step.weight: self.weight}, torch.Size((1, 1, *self.shape))
        map_alone = dataclasses.replace(self.step, bias=None)

        def back(leaving: Tensor) -> Tensor:
            return self.step.returned(leaving[None, None], self.weight, True, size)[0, 0]

        known = victim.known.to(self.weight)
        normal = self.normal
        if not victim.known.all():
            each = known.reshape(len(self.reads), -1, 1) * self.matrix
            normal = _summed(each.mT @ each, self.reads, math.prod(self.shape[:-1]))
        slopes = self._slopes(victim.delta)
        # (O, C, k, k) as (O * k * k, C), in the order of the slopes.
        slants = gradient if self.step.kernel is None else gradient.flatten(2).mT.flatten(0, 1)
        scale = trust * (self.normal.diagonal().amax() / slopes.square().sum(0).amax().clamp_min(TINY)).sqrt()
        slopes, slants = scale * slopes, scale * slants
        places, channels = slopes.shape[1], slants.shape[1]
        blocks = normal.clone().reshape(places, channels, places, channels)
        blocks.diagonal(dim1=1, dim2=3).add_((slopes.mT @ slopes)[..., None])
        solve, lack = _solver(blocks.reshape_as(normal), rank)
        x = torch.zeros_like(normal[0])
        for _ in range(1 + REFINEMENTS):
            answer = map_alone(sent, True, x.reshape(size)).answer[0, 0]
            apart = slopes.mT @ (slants - slopes @ x.reshape(places, channels))
            x = x + solve(back(known * (victim.values - self.bias - answer)).flatten() + apart.flatten())
        return _Victim.at(x.reshape(self.shape), back(victim.delta), victim.lack + lack)

    def _slopes(self, delta: Tensor) -> Tensor:
        """Return K for one channel, the same for all of them, (O * k * k, H * W); (O, 1) for a linear layer."""
        kernel = self.step.kernel
        if kernel is None:
            return delta[:, None]
        count = math.prod(kernel.size)
        eye = torch.eye(count, dtype=delta.dtype, device=delta.device)
        columns = delta.movedim(-1, 0)[:, None, :, :, None] * eye[None, :, None, None]
        return folded(columns.flatten(0, 1), kernel, *self.shape[:2]).flatten(1)


def _summed(products: Tensor, reads: Tensor, places: int) -> Tensor:
    """Return the sum (n, n) of the products (P, k * k * C, k * k * C) of the numbers that each output reads, (P, k * k)."""
    count, channels = reads.shape[1], products.shape[1] // reads.shape[1]
    split = products.reshape(-1, count, channels, count, channels).transpose(2, 3)
    total = products.new_zeros(places + 1, places + 1, channels, channels)
    for product, own in zip(split, reads, strict=True):
        total[own[:, None], own] += product  # Only the padding appears twice in `own`.
    return total[:-1, :-1].transpose(1, 2).reshape(places * channels, -1)


def _solver(normal: Tensor, rank: float) -> tuple[Callable[[Tensor], Tensor], int]:
    """Return the inverse of a positive matrix (n, n) on the directions that it determines, and the number of the others."""
    factor, failed = torch.linalg.cholesky_ex(normal)
    if not failed:
        small, large = (torch.ones_like(normal[:, :1]) for _ in range(2))
        for _ in range(POWERS):
            small = torch.cholesky_solve(small / small.norm(), factor)
            large = normal @ (large / large.norm())
        if rank**2 * small.norm() * large.norm() < 1:
            return lambda b: torch.cholesky_solve(b[:, None], factor)[:, 0], 0
    values, vectors = torch.linalg.eigh(normal)
    inside = values > rank**2 * values[-1]
    vectors, values = vectors[:, inside], values[inside]
    return lambda b: vectors @ ((vectors.mT @ b) / values), int((~inside).sum())
