"""The gradient of one layer for many examples, as a product of two matrices.

The gradient of one example is the sum over places P of deltas (P, O) times columns (P, Q): (O, Q). Sums over examples, and for
linear layers norms, do not need the product ("ghost norms": Goodfellow, arXiv:1510.01799; Li et al., ICLR 2022, section 4).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from leakbench.core.types import Parameters
from leakbench.engine.rows import length
from leakbench.engine.steps import Affine

__all__ = ["Factored"]


@dataclass(frozen=True)
class Factored:
    """The gradients of a layer.

    Args:
        columns: (K, B, P, Q).
        deltas: (K, B, P, O).
        like: The layer's weight, (..., *p).
    """

    layer: Affine
    columns: Tensor
    deltas: Tensor
    like: Tensor

    @cached_property
    def products(self) -> Tensor:
        """(K, B, O, Q), every example's gradient."""
        columns, deltas = self.columns.flatten(0, 1), self.deltas.flatten(0, 1)
        # The longer rows come last: a product with rows as short as a first layer's columns takes nearly twice as long.
        short = columns.shape[2] < deltas.shape[2]
        flat = torch.bmm(columns.mT, deltas).mT if short else torch.bmm(deltas.mT, columns)
        return flat.reshape(*self.columns.shape[:2], *flat.shape[1:])

    @cached_property
    def sums(self) -> Tensor:
        """(K, B, O), every example's gradient with respect to the bias."""
        return self.deltas.sum(2)

    def each(self) -> Parameters:
        """Return every example's gradient, {p: (K, B, *p)}."""
        found = self._weight(self.products)
        return found if self.layer.bias is None else {**found, self.layer.bias: self.sums}

    def without(self, lost: Tensor) -> Factored:
        """Return the gradients with zeros for the examples where `lost` (K, B) is true."""
        columns, deltas = (t.masked_fill(lost[..., None, None], 0) for t in (self.columns, self.deltas))
        return replace(self, columns=columns, deltas=deltas)

    def norms(self) -> dict[str, Tensor]:
        """Return the L2 norm of each tensor of each example, {p: (K, B)}."""
        if self.columns.shape[2] == 1:
            weight = length(self.columns[:, :, 0], 2) * length(self.deltas[:, :, 0], 2)
        else:
            weight = length(self.products.flatten(2), 2)
        found = {self.layer.weight: weight}
        if self.layer.bias is not None:
            found[self.layer.bias] = length(self.sums, 2)
        return found

    def merged(self, factors: dict[str, Tensor] | None = None) -> Parameters:
        """Return the sum over the members, {p: (K, 1, *p)}.

        Args:
            factors: {p: (K, B)}, the factor of each member's tensor; None for 1.
        """
        at = {} if factors is None else {name: factor.to(self.deltas) for name, factor in factors.items()}
        found = self._weight(self._merged_weight(at.get(self.layer.weight))[:, None])
        if self.layer.bias is not None:
            factor = at.get(self.layer.bias)
            sums = self.sums.sum(1, keepdim=True) if factor is None else torch.bmm(factor[:, None], self.sums)
            found[self.layer.bias] = sums
        return found

    def _merged_weight(self, factor: Tensor | None) -> Tensor:
        """Return the sum (K, O, Q) over the members of the weight's gradients, each times its factor (K, B)."""
        lanes, members, places, _ = self.columns.shape
        if factor is not None and places > 1 and self._has_products:
            return torch.bmm(factor[:, None], self.products.flatten(2)).reshape(lanes, *self.products.shape[2:])
        deltas = self.deltas if factor is None else self.deltas * factor[..., None, None]
        rows = deltas.reshape(lanes, members * places, -1)
        return torch.bmm(rows.mT, self.columns.reshape(lanes, members * places, -1))

    @property
    def _has_products(self) -> bool:
        """Whether `products` were computed before, as for norms, and cost nothing more."""
        return "products" in vars(self)

    def _weight(self, products: Tensor) -> Parameters:
        return {self.layer.weight: self.layer.weight_like(products, self.like)}
