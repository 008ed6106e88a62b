"""Exact inversion of a batch by an honest server: behind a ReLU each example's gradient is sparse, and that tells them apart."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from leakbench.answers import Reconstruction
from leakbench.attack.looks import averaged
from leakbench.attack.one_step import answered_at_once, likeliest
from leakbench.errors import InputError
from leakbench.federated.view import View
from leakbench.models.gates import gated_biases
from leakbench.models.layers import first_layer
from leakbench.part import Count, Fraction, Positive, part
from leakbench.progress import Tick, unticked
from leakbench.types import Generators

__all__ = ["Spear"]

AT_ONCE = 2000
"""Sets of rows whose kernels are worked out together."""

APART = 0.05
"""Of a direction of length 1, how much has to lie outside the span of those taken before."""

WIDEST = 0.1
"""A row is left out of which the noise is a larger share than this: along any direction it might vanish."""


@dataclass(frozen=True)
class _Layer:
    """The gradient of a first layer, weight (rows, d) and bias (rows,), and its values as sent, `sent` and `offset`."""

    weight: Tensor
    bias: Tensor
    sent: Tensor
    offset: Tensor


@part("method.spear")
class Spear:
    """Invert a first layer W x + b that is followed by a ReLU (Dimitrov et al., SPEAR, NeurIPS 2024).

    dW = dZ^T X of rank M factors as L R, and dZ^T = L Q for an unknown M x M matrix Q, whose columns are found one by one. Where
    an example is inactive, its column of dZ^T is zero, so the kernel of M - 1 rows of L on which it is inactive is a column of Q.
    A direction is accepted where at least the share `sparse` of the rows vanish along it, the sparsest first. The scales follow
    from db. Rows vanish within `tolerance` standard deviations of the noise that the singular values beyond M show, each row by
    its own length, so that the attacker need not know the rounding or the defense's noise.
    """

    draws: Annotated[
        Count,
        Field(
            description="Largest number of sets of rows to try; each set hits an example with probability of about 2^-(M - 1)."
        ),
    ] = 40_000
    sparse: Fraction = 0.1
    tolerance: Positive = 4.0
    certain: Annotated[
        Fraction,
        Field(description="The search ends sooner where the certificate of every reconstruction reaches this."),
    ] = 0.97

    def __call__(self, views: tuple[View, ...], rngs: Generators) -> Reconstruction:
        """Answer for V victims, clamped to [0, 1]; NaN where fewer than M directions were found.

        The certainty is the certificate of the paper: the share of rows on which an answer is active just where its gradient is
        not zero. Of several releases each gives an answer, and the likeliest is given. Raises InputError where the network does
        not begin with a biased linear layer before a ReLU, or the batch has no fewer examples than the layer has rows or inputs.
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
        found = [self._batch(one, view.examples, rng, view.tick) for one, rng in zip(layers, rngs, strict=True)]
        inputs = torch.stack([x for x, _ in found]).to(view.update[f"{name}weight"])
        answer = answered_at_once((view,), inputs.clamp(0, 1).reshape(view.victims, view.examples, *view.shape), rngs)
        return dataclasses.replace(answer, certainty=torch.stack([sure for _, sure in found]).to(inputs))

    def _batch(self, one: _Layer, many: int, rng: torch.Generator, tick: Tick = unticked) -> tuple[Tensor, Tensor]:
        """Return (inputs (M, d), certainty (M,)) behind the gradient of one batch."""
        best = one.weight.new_full((many, one.weight.shape[1]), torch.nan), one.weight.new_full((many,), -torch.inf)
        left, scale, right = torch.linalg.svd(one.weight, full_matrices=False)
        beyond = scale[many:].square().sum() / ((one.weight.shape[0] - many) * (one.weight.shape[1] - many))
        deviation = beyond.sqrt().clamp_min(torch.finfo(one.weight.dtype).eps * scale[0])
        # A matrix of noise alone has singular values up to its deviation times this sum (Marchenko and Pastur).
        noise = deviation * sum(size**0.5 for size in one.weight.shape)
        if not scale[many - 1] > 2 * noise:
            return best
        left, lengths = left[:, :many], left[:, :many].norm(dim=1)
        wide = self.tolerance * deviation * (1 / scale[:many]).norm() / many**0.5
        lit = lengths > wide / WIDEST  # A row on which every example is inactive holds noise and tells nobody apart.
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
        """Yield M directions (M, M), as columns, along which most of the unit rows (n, M) vanish; the longer asked, the better."""
        found, zeros = rows.new_empty(0, many), rows.new_empty(0)
        if many == 1:
            yield rows.new_ones(1, 1)
            return
        for _ in range(0, self.draws, AT_ONCE):
            tick()
            chosen = torch.rand(AT_ONCE, len(rows), generator=rng).topk(many - 1, dim=1).indices.to(rows.device)
            kernels = torch.linalg.svd(rows[chosen], full_matrices=True)[2][:, -1]
            vanish = ((rows @ kernels.T).abs() < within[:, None]).double().mean(0)
            kept = vanish >= self.sparse
            found, zeros = torch.cat([found, kernels[kept]]), torch.cat([zeros, vanish[kept]])
            order = zeros.argsort(descending=True, stable=True)[:AT_ONCE]
            found, zeros = found[order], zeros[order]
            taken = _independent(found, rows, within, many)
            if len(taken) == many:
                yield taken.T


def _independent(found: Tensor, rows: Tensor, within: Tensor, many: int) -> Tensor:
    """Return up to M of the directions (n, M) that are independent, the first first, each fitted anew to all rows that vanish."""
    taken, basis = found.new_empty(0, many), found.new_empty(0, many)
    for direction in found:
        if (direction - (direction @ basis.T) @ basis).norm() <= APART:
            continue
        still = (rows @ direction).abs() < within
        # Rows as long as they were, so that each has the same noise.
        fitted = torch.linalg.svd((rows / within[:, None])[still], full_matrices=True)[2][-1]
        rest = fitted - (fitted @ basis.T) @ basis
        if rest.norm() > APART:
            taken, basis = torch.cat([taken, fitted[None]]), torch.cat([basis, (rest / rest.norm())[None]])
        if len(taken) == many:
            break
    return taken
