"""The cocktail party attack: the rows of a first layer's gradient are mixtures of the examples, which ICA separates."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from leakbench.attack.looks import averaged
from leakbench.attack.needs import PLAIN, Needs
from leakbench.attack.one_step import answered_at_once, likeliest
from leakbench.core.answers import Reconstruction
from leakbench.core.errors import InputError
from leakbench.core.part import Count, Positive, part
from leakbench.core.types import Generators
from leakbench.federated.view import View
from leakbench.models.layers import first_layer

__all__ = ["CocktailParty"]

TOLERANCE = 1e-8
"""Change of the directions, and largest slope of the likelihood, below which the iterations end."""

FLAT = 1e-9
"""Largest absolute value of a signal's column that says nothing."""

CURVED = 1e-3
"""Smallest curvature of the likelihood, and smallest determinant of its blocks."""

HALVINGS = 10
"""Largest number of halvings of a step."""

OUTSIDE = 0.01
"""How far a value may exceed [0, 1] and count as inside."""


@part("method.cocktail_party")
class CocktailParty:
    """Separate the M examples of dL/dW = D^T X / M by independent component analysis (Kariyappa et al., ICML 2023, section 4).

    The first M right singular vectors of dL/dW are mixtures of the examples. FastICA (Hyvaerinen, 1999) finds orthogonal
    directions whose signals are least Gaussian. Quasi-Newton steps then maximise the likelihood of independent signals with the
    density 1 / cosh, where the directions need not be orthogonal. The gradient of the bias is the same mixture of ones, which
    gives each example its sign and length.

    The paper separates the values of the pixels and adds a total variation. The default here separates the differences of
    neighbouring pixels: they are the same mixtures, but sparse and less alike in different images.
    """

    needs: ClassVar[Needs] = Needs(kinds=PLAIN)

    signal: Annotated[
        Literal["differences", "values"],
        Field(
            description=(
                "Signal that is separated. `differences`: those of neighbouring pixels; for tables, the values. `values`: the "
                "values without their mean."
            )
        ),
    ] = "differences"
    iterations: Annotated[Count, Field(description="Largest number of iterations of each of the two searches.")] = 100
    rank: Annotated[
        Positive,
        Field(
            description="Smallest M-th singular value of dL/dW, as a share of the first, that is not a rounding error."
        ),
    ] = 1e-6

    def __call__(self, views: tuple[View, ...], rngs: Generators) -> Reconstruction:
        """Reconstruct V victims, clamped to [0, 1]; victim v draws its first directions from rngs[v].

        The certainty is the share of the values that are in [0, 1] before the clamp. Each release gives a reconstruction, and the
        most certain one is returned.

        Returns:
            NaN if dL/dW has a rank below M, for example if two examples are equal.

        Raises:
            InputError: If the network does not begin with a biased linear layer, or if the batch does not have fewer examples
                than the layer has rows and inputs.
        """
        return likeliest([self._answer(view, rngs) for view, _ in averaged(views)])

    def applies(self, view: View) -> bool:
        """Return whether the network begins with a biased linear layer that is wide enough for the examples."""
        name = first_layer(view.network.model, view.shape)
        return name is not None and view.examples < min(view.update[f"{name}weight"].shape[1:])

    def _answer(self, view: View, rngs: Generators) -> Reconstruction:
        name = first_layer(view.network.model, view.shape)
        if name is None:
            raise InputError(
                "attack: cocktail_party separates the gradient of a biased linear first layer, with which this network does not"
                " begin; use --leak-model mlp_1000, or choose another attack"
            )
        weight, bias = (view.update[f"{name}{kind}"].double() for kind in ("weight", "bias"))
        fewest = min(weight.shape[1:])
        if view.examples >= fewest:
            raise InputError(
                f"attack: cocktail_party got {view.examples} examples, expected fewer than the {fewest} rows or inputs of the first"
                " layer; use a smaller --leak-batch"
            )
        each = []
        for lane in range(view.victims):
            view.tick()
            each.append(self._separated(view, weight[lane], bias[lane], rngs[lane]))
        unclamped = torch.stack(each).to(view.update[f"{name}weight"])
        shaped = unclamped.reshape(view.victims, view.examples, *view.shape)
        inside = ((unclamped >= -OUTSIDE) & (unclamped <= 1 + OUTSIDE)).to(unclamped).mean(2)
        sure = inside.masked_fill(unclamped.isnan().any(2), -torch.inf)
        return answered_at_once((view,), shaped.clamp(0, 1), rngs, certainty=sure)

    def _separated(self, view: View, weight: Tensor, bias: Tensor, rng: torch.Generator) -> Tensor:
        """Return the examples (M, d) of one batch, unclamped."""
        many = view.examples
        unread = weight.new_full((many, weight.shape[1]), torch.nan)
        if not weight.isfinite().all() or not bias.isfinite().all():
            return unread
        left, sizes, right = torch.linalg.svd(weight, full_matrices=False)
        if not sizes[many - 1] > self.rank * sizes[0]:
            return unread
        mixtures, ones = right[:many], (left[:, :many].mT @ bias) / sizes[:many]
        signal = self._signal(mixtures, view.shape)
        values, vectors = torch.linalg.eigh(signal @ signal.mT / signal.shape[1])
        if not values[0] > self.rank**2 * values[-1]:
            return unread
        white = (vectors / values.sqrt()) @ vectors.mT
        directions = _orthogonal(white @ signal, self.iterations, rng) @ white
        directions = _likeliest(directions @ signal, self.iterations) @ directions
        examples: Tensor = directions @ mixtures / (directions @ ones)[:, None]
        return examples

    def _signal(self, mixtures: Tensor, shape: tuple[int, ...]) -> Tensor:
        """Return the signal (M, n) of mixtures (M, d) of inputs of a shape (*s)."""
        if self.signal == "values" or len(shape) < 3:
            return mixtures - mixtures.mean(1, keepdim=True)
        pictures = mixtures.reshape(-1, *shape)
        signal = torch.cat([pictures.diff(dim=axis).flatten(1) for axis in (-2, -1)], 1)
        return signal[:, signal.abs().amax(0) > FLAT]


def _orthogonal(white: Tensor, iterations: int, rng: torch.Generator) -> Tensor:
    """Return orthonormal directions (M, M) in which white signals (M, n) are least Gaussian, by symmetric FastICA with log cosh."""
    rows = _nearest(torch.randn(len(white), len(white), generator=rng, dtype=torch.float64).to(white))
    for _ in range(iterations):
        bent = (rows @ white).tanh()
        slope = (1 - bent.square()).mean(1, keepdim=True)
        new = _nearest(bent @ white.mT / white.shape[1] - slope * rows)
        change = ((new * rows).sum(1).abs() - 1).abs().amax()
        rows = new
        if change < TOLERANCE:
            break
    return rows


def _nearest(matrix: Tensor) -> Tensor:
    """Return the nearest orthogonal matrix."""
    left, _, right = torch.linalg.svd(matrix)
    nearest: Tensor = left @ right
    return nearest


def _likeliest(signals: Tensor, iterations: int) -> Tensor:
    """Return the matrix T (M, M) for which T @ signals (M, n) are likeliest to be independent with the density 1 / cosh.

    Each step is relative to the current signals: with the blocks of two signals as the second derivative (Ablin, Cardoso and
    Gramfort, "Faster independent component analysis by preconditioning with Hessian approximations", 2018), halved until the
    likelihood rises.
    """
    one = torch.eye(len(signals), dtype=signals.dtype, device=signals.device)
    total = one / signals.square().mean(1, keepdim=True).sqrt()
    current, loss = total @ signals, _loss(total, signals)
    for _ in range(iterations):
        bent = current.tanh()
        slope = bent @ current.mT / current.shape[1] - one
        if slope.abs().amax() < TOLERANCE:
            break
        bend = ((1 - bent.square()) @ current.square().mT / current.shape[1]).clamp_min(CURVED)
        # A block [[h_ij, 1], [1, h_ji]] that is not positive is scaled until it is.
        products = bend * bend.mT
        bend = bend * ((1 + CURVED) / products).sqrt().clamp_min(1)
        step = (slope.mT - bend.mT * slope) / (bend * bend.mT - 1)
        step = torch.where(one.bool(), -slope / (bend + 1), step)
        for halving in range(HALVINGS):
            new = (one + step / 2**halving) @ total
            after = _loss(new, signals)
            if after < loss:
                break
        else:
            break
        total, loss, current = new, after, new @ signals
    return total


def _loss(total: Tensor, signals: Tensor) -> Tensor:
    """Return minus the mean log-likelihood of T @ signals, up to a constant."""
    sizes = (total @ signals).abs()
    loss: Tensor = (sizes + torch.nn.functional.softplus(-2 * sizes)).mean(1).sum() - torch.linalg.slogdet(total)[1]
    return loss
