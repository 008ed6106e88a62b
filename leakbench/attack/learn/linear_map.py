"""The linear map from gradients to inputs that is best on public examples, in closed form."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import torch
from torch import Tensor

from leakbench.attack.learn.ridge import leave_one_out
from leakbench.attack.public_gradients import check_learnable, gradients_alone, numbers
from leakbench.core.errors import InputError
from leakbench.core.types import Parameters
from leakbench.engine.rows import gram_of
from leakbench.federated.view import Public, View

__all__ = ["LinearMap", "check_readable", "linear_map", "linear_map_of", "tensors_of"]

ROUNDING = 1e-7
"""Smallest ridge as a share of the mean diagonal, since gradients in single precision have such rounding errors."""

MOST_BYTES = 8_000_000_000
"""Largest size of the public gradients in memory."""


@dataclass(frozen=True)
class Side:
    """The comparison of one view's gradients y with the public ones, as (y - mean) * scale.

    Args:
        mean: Mean (p,) of the public gradients.
        scale: Factor (p,) of each coordinate.
        centred: The public gradients (n, p), centred and scaled.
    """

    mean: Tensor
    scale: Tensor
    centred: Tensor


SIDE = tuple(f.name for f in dataclasses.fields(Side))


@dataclass(frozen=True)
class LinearMap:
    """The map x = mean + sum over views of (y - g) A^T, times coefficients.

    Args:
        sides: One for each view.
        coefficients: (n, d).
        mean: Mean input (*s).
    """

    sides: tuple[Side, ...]
    coefficients: Tensor
    mean: Tensor

    def __call__(self, observed: tuple[Tensor, ...]) -> Tensor:
        """Return inputs (V, *s), unclamped, for the observed gradients (V, p) of each view."""
        alike = [((y - s.mean) * s.scale) @ s.centred.T for y, s in zip(observed, self.sides, strict=True)]
        inputs: Tensor = self.mean + (torch.stack(alike).sum(0) @ self.coefficients).reshape(-1, *self.mean.shape)
        return inputs


def linear_map(views: tuple[View, ...], public: Public, ridge: float | None = None) -> LinearMap:
    """Return the linear estimator with the least mean squared error of an input from its own gradient.

    x = m + (y - g) A^T (A A^T + n s^2 I)^-1 (X - m). A (n, p) contains the public examples' gradients after the deterministic
    part of the defense, minus their mean g. X contains the examples, and m is their mean. This is the Gaussian posterior mean. It
    is exact if inputs and gradients are jointly Gaussian with the sample's moments, and if the noise has the standard deviation s
    on each coordinate (`View.noise`). Several views of the same victims form one longer gradient: their A A^T are added, each
    divided by its own s^2. The observed updates are not read.

    Args:
        views: Views with one network and single examples.
        public: The n public examples.
        ridge: Ridge for gradients without noise, as a share of the mean diagonal, with each tensor scaled to a root mean square
            of 1; None to choose it by `leave_one_out`.

    Raises:
        InputError: For batches, if each victim has its own network, if only some views are noisy, and if the gradients take more
            than 8 GB.
    """
    check_readable(views, public)
    like = next(iter(views[0].network.parameters.values()))
    sides = tuple(_side(view, public, ridge is not None) for view in views)
    gram = torch.stack([gram_of(side.centred) for side in sides]).sum(0)
    inputs = public.inputs.to(like)
    mean = inputs.mean(0)
    apart = (inputs - mean).flatten(1).double()
    coefficients = torch.full_like(apart, torch.nan)
    if gram.isfinite().all():  # Otherwise, the model has diverged, and the coefficients stay NaN.
        gram.diagonal().add_(_added(gram, apart, bool(views[0].noise), ridge))
        coefficients = torch.linalg.solve(gram, apart)
    return LinearMap(sides, coefficients.to(like), mean)


def _added(gram: Tensor, apart: Tensor, noisy: bool, ridge: float | None) -> float:
    """Return the number added to the diagonal of A A^T; 1 if all public gradients are equal, when any number will do."""
    diagonal = float(gram.diagonal().mean())
    if noisy:  # In units of the noise, n s^2 is n.
        return max(len(gram), ROUNDING * diagonal)
    return (leave_one_out(gram, apart) if ridge is None else ridge * diagonal) or 1.0


def tensors_of(made: LinearMap) -> Parameters:
    """Return the map as {name: tensor}, to be stored."""
    sides = {f"{i}.{name}": getattr(side, name) for i, side in enumerate(made.sides) for name in SIDE}
    return {**sides, "coefficients": made.coefficients, "mean": made.mean}


def linear_map_of(tensors: Parameters) -> LinearMap:
    """Return the map from its stored tensors."""
    views = (len(tensors) - 2) // len(SIDE)
    sides = tuple(Side(**{name: tensors[f"{i}.{name}"] for name in SIDE}) for i in range(views))
    return LinearMap(sides, tensors["coefficients"], tensors["mean"])


def check_readable(views: tuple[View, ...], public: Public) -> None:
    """Raise InputError for views that `linear_map` cannot read."""
    for view in views:
        check_learnable(view, "lmmse")
    if len({bool(view.noise) for view in views}) > 1:
        raise InputError("lmmse: some of the joined rounds are noisy and others are not (leave --join-rounds out)")
    size = 4 * len(public.labels) * sum(numbers(view) for view in views)
    if size > MOST_BYTES:
        raise InputError(
            f"lmmse: {len(public.labels)} public gradients take {size / 1e9:.0f} GB, expected at most {MOST_BYTES / 1e9:.0f}"
            " (set a smaller `public` in the recipe)"
        )


def _side(view: View, public: Public, even: bool) -> Side:
    """Return the public gradients in units of the noise; without noise, unscaled, or with equal tensors if `even`."""
    like = next(iter(view.network.parameters.values()))
    gradients = like.new_empty(len(public.labels), numbers(view))
    filled = 0
    for some in gradients_alone(view, public):
        gradients[filled : filled + len(some)] = some
        filled += len(some)
    mean = gradients.mean(0)
    gradients -= mean
    scale = torch.full_like(mean, 1 / (view.noise or 1.0))
    if even and not view.noise:
        scale = _evening(view, gradients)
    gradients *= scale
    return Side(mean, scale, gradients)


def _evening(view: View, centred: Tensor) -> Tensor:
    """Return the factors (p,) that give each tensor's centred gradients a root mean square of 1; 1 if they are zero."""
    factors = []
    for tensor in torch.split(centred, [p.numel() for p in view.network.parameters.values()], 1):
        size = tensor.square().mean().sqrt()
        factors.append((1 / torch.where(size > 0, size, 1.0)).expand(tensor.shape[1]))
    return torch.cat(factors)
