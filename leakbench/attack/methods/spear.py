"""Exact inversion of a batch with an honest server: after a ReLU, the gradient of each example is sparse, which separates them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from leakbench.attack.looks import averaged
from leakbench.attack.needs import PLAIN, Needs
from leakbench.attack.one_step import answered_at_once, likeliest
from leakbench.core.answers import Reconstruction
from leakbench.core.errors import InputError
from leakbench.core.part import Count, Fraction, Positive, part
from leakbench.core.progress import Tick, unticked
from leakbench.core.types import Generators
from leakbench.federated.view import View
from leakbench.models.gates import gated_biases
from leakbench.models.layers import first_layer

__all__ = ["Spear"]

AT_ONCE = 2000
"""Number of sets of rows whose kernels are computed at once."""

APART = 0.05
"""Length that a direction of length 1 must have outside the span of those chosen before."""

WIDEST = 0.1
"""Largest share of noise in a row; a noisier row could vanish along any direction, so it is left out."""


@dataclass(frozen=True)
class _Layer:
    """A first layer of one victim.

    Args:
        weight: Gradient (rows, d) of its weights.
        bias: Gradient (rows,) of its biases.
        sent: Its weights.
        offset: Its biases.
    """

    weight: Tensor
    bias: Tensor
    sent: Tensor
    offset: Tensor


@part("method.spear")
class Spear:
    """Invert a first layer W x + b that is followed by a ReLU (Dimitrov et al., SPEAR, NeurIPS 2024).

    dW = dZ^T X of rank M factors as L R, and dZ^T = L Q for an unknown M x M matrix Q, whose columns are found one by one. If an
    example is inactive on a row, its column of dZ^T is zero there, so the kernel of M - 1 such rows of L is a column of Q. The
    directions along which most rows vanish are accepted first. The scales follow from db. The singular values beyond M show the
    noise, so that the attacker need not know the rounding or the defense's noise. The noise of a row is relative to its length.
    """

    needs: ClassVar[Needs] = Needs(kinds=PLAIN)

    draws: Annotated[
        Count,
        Field(
            description="Largest number of sets of rows to try; each set hits an example with probability of about 2^-(M - 1)."
        ),
    ] = 40_000
    sparse: Annotated[
        Fraction, Field(description="Smallest share of the rows that must vanish along an accepted direction.")
    ] = 0.1
    tolerance: Annotated[
        Positive,
        Field(description="Number of standard deviations of the noise within which a row vanishes along a direction."),
    ] = 4.0
    certain: Annotated[
        Fraction,
        Field(description="Certificate at which the search ends early, if every reconstruction reaches it."),
    ] = 0.97

    def __call__(self, views: tuple[View, ...], rngs: Generators) -> Reconstruction:
        """Reconstruct V victims, clamped to [0, 1].

        The certainty is the certificate of the paper: the share of rows on which a reconstruction is active exactly if its
        gradient is not zero. Each release gives a reconstruction, and the most likely one is returned.

        Returns:
            NaN if fewer than M directions were found.

        Raises:
            InputError: If the network does not begin with a biased linear layer before a ReLU, or if the batch does not have
                fewer examples than the layer has rows and inputs.
        """
        return likeliest([self._read(view, rngs) for view, _ in averaged(views)])

    def _read(self, view: View, rngs: Generators) -> Reconstruction:
        name = first_layer(view.network.model, view.shape)
        if name is None:
            raise InputError(
                "attack: spear reads a biased linear first layer with a ReLU behind it; choose a network with one (mlp_relu)"
            )
        if f"{name}bias" not in gated_biases(view.network.model, view.shape):
            raise InputError(
                "attack: spear tells examples apart by the zeros of a ReLU, and the first layer is not followed by one"
            )
        weight, bias = (view.update[f"{name}{kind}"].double() for kind in ("weight", "bias"))
        fewest = min(weight.shape[1:])
        if view.examples >= fewest:
            raise InputError(
                f"spear: got {view.examples} examples, expected fewer than the {fewest} rows or inputs of the first layer"
            )
        sent = {kind: view.network.parameters[f"{name}{kind}"].double() for kind in ("weight", "bias")}
        layers = (
            _Layer(weight[v], bias[v], *(p if view.network.shared else p[v] for p in sent.values()))
            for v in range(view.victims)
        )
        answers = [self._batch(one, view.examples, rng, view.tick) for one, rng in zip(layers, rngs, strict=True)]
        inputs = torch.stack([x for x, _ in answers]).to(view.update[f"{name}weight"])
        shaped = inputs.clamp(0, 1).reshape(view.victims, view.examples, *view.shape)
        sure = torch.stack([certainty for _, certainty in answers]).to(inputs)
        return answered_at_once((view,), shaped, rngs, certainty=sure)

    def _batch(self, one: _Layer, many: int, rng: torch.Generator, tick: Tick = unticked) -> tuple[Tensor, Tensor]:
        """Return the inputs (M, d) and the certainty (M,) of one batch."""
        best = one.weight.new_full((many, one.weight.shape[1]), torch.nan), one.weight.new_full((many,), -torch.inf)
        left, scale, right = torch.linalg.svd(one.weight, full_matrices=False)
        beyond = scale[many:].square().sum() / ((one.weight.shape[0] - many) * (one.weight.shape[1] - many))
        deviation = beyond.sqrt().clamp_min(torch.finfo(one.weight.dtype).eps * scale[0])
        # A matrix of pure noise has singular values up to its deviation times this sum (Marchenko and Pastur).
        noise = deviation * sum(size**0.5 for size in one.weight.shape)
        if not scale[many - 1] > 2 * noise:
            return best
        left, lengths = left[:, :many], left[:, :many].norm(dim=1)
        wide = self.tolerance * deviation * (1 / scale[:many]).norm() / many**0.5
        lit = lengths > wide / WIDEST  # A row on which every example is inactive contains only noise.
        rows, within = left[lit] / lengths[lit, None], wide / lengths[lit]
        if len(rows) < many:
            return best
        for columns in self._columns(rows, within, many, rng, tick):
            sizes = torch.linalg.lstsq(left @ columns, one.bias[:, None]).solution[:, 0]
            inputs = torch.linalg.solve(columns * sizes, scale[:many, None] * right[:many])
            active, zero = one.sent @ inputs.T + one.offset[:, None] > 0, torch.ones_like(left, dtype=torch.bool)
            zero[lit] = (rows @ columns).abs() < within[:, None]
            sure = (active != zero).double().mean(0)
            if sure.mean() > best[1].mean():
                best = inputs, sure
            if sure.min() >= self.certain:
                break
        return best

    def _columns(self, rows: Tensor, within: Tensor, many: int, rng: torch.Generator, tick: Tick) -> Iterator[Tensor]:
        """Yield M directions (M, M), as columns, along which most of the unit rows (n, M) vanish; later ones are better."""
        directions, zeros = rows.new_empty(0, many), rows.new_empty(0)
        if many == 1:
            yield rows.new_ones(1, 1)
            return
        for _ in range(0, self.draws, AT_ONCE):
            tick()
            chosen = torch.rand(AT_ONCE, len(rows), generator=rng).topk(many - 1, dim=1).indices.to(rows.device)
            kernels = torch.linalg.svd(rows[chosen], full_matrices=True)[2][:, -1]
            vanish = ((rows @ kernels.T).abs() < within[:, None]).double().mean(0)
            enough = vanish >= self.sparse
            directions, zeros = torch.cat([directions, kernels[enough]]), torch.cat([zeros, vanish[enough]])
            order = zeros.argsort(descending=True, stable=True)[:AT_ONCE]
            directions, zeros = directions[order], zeros[order]
            taken = _independent(directions, rows, within, many)
            if len(taken) == many:
                yield taken.T


def _independent(directions: Tensor, rows: Tensor, within: Tensor, many: int) -> Tensor:
    """Return up to M independent directions among (n, M), in order, each fitted to all rows that vanish along it."""
    taken, basis = directions.new_empty(0, many), directions.new_empty(0, many)
    for direction in directions:
        if (direction - (direction @ basis.T) @ basis).norm() <= APART:
            continue
        still = (rows @ direction).abs() < within
        # Rows are scaled so that each has the same noise.
        fitted = torch.linalg.svd((rows / within[:, None])[still], full_matrices=True)[2][-1]
        rest = fitted - (fitted @ basis.T) @ basis
        if rest.norm() > APART:
            taken, basis = torch.cat([taken, fitted[None]]), torch.cat([basis, (rest / rest.norm())[None]])
        if len(taken) == many:
            break
    return taken
