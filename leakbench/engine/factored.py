"""The gradient of one layer for many examples, as the two matrices whose product it is.

Of one example it is the sum over places P of deltas (P, O) times columns (P, Q): (O, Q). Sums over examples, and for linear
layers norms, follow without it ("ghost norms": Goodfellow, arXiv:1510.01799; Li et al., ICLR 2022, section 4).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from leakbench.engine.steps import Affine
from leakbench.types import Parameters

__all__ = ["Factored"]


@dataclass(frozen=True)
class Factored:
    """columns (K, B, P, Q), deltas (K, B, P, O) of a layer, whose weight has the shape of `like` (..., *p)."""

    layer: Affine
    columns: Tensor
    deltas: Tensor
    like: Tensor

    @property
    def names(self) -> tuple[str, ...]:
        """The names of its parameters."""
        return (self.layer.weight,) if self.layer.bias is None else (self.layer.weight, self.layer.bias)

    @cached_property
    def products(self) -> Tensor:
        """(K, B, O, Q), every example's gradient."""
        lanes, members, _, taken = self.columns.shape
        flat = torch.bmm(self.deltas.flatten(0, 1).mT, self.columns.flatten(0, 1))
        return flat.reshape(lanes, members, -1, taken)

    @cached_property
    def sums(self) -> Tensor:
        """(K, B, O), every example's gradient by the bias."""
        return self.deltas.sum(2)

    def each(self) -> Parameters:
        """Return every example's gradient, {p: (K, B, *p)}."""
        return self._named(self.products, self.sums)

    def norms(self) -> dict[str, Tensor]:
        """Return the L2 norm of each tensor of each example, {p: (K, B)}."""
        if self.columns.shape[2] == 1:
            weight = self.columns[:, :, 0].norm(dim=2) * self.deltas[:, :, 0].norm(dim=2)
        else:
            weight = self.products.flatten(2).norm(dim=2)
        found = {self.layer.weight: weight}
        if self.layer.bias is not None:
            found[self.layer.bias] = self.sums.norm(dim=2)
        return found

    def merged(self, factors: dict[str, Tensor]) -> Parameters:
        """Return the sum over the members, each tensor times its factor {p: (K, B)}: {p: (K, 1, *p)}."""
        lanes, members, places, _ = self.columns.shape
        factors = {name: factor.to(self.deltas) for name, factor in factors.items()}
        factor = factors[self.layer.weight]
        if places > 1 and "products" in vars(self):  # They are there, since their norms were asked for.
            weight = torch.bmm(factor[:, None], self.products.flatten(2)).reshape(lanes, *self.products.shape[2:])
        else:
            deltas = (self.deltas * factor[..., None, None]).reshape(lanes, members * places, -1)
            weight = torch.bmm(deltas.mT, self.columns.reshape(lanes, members * places, -1))
        bias = self.sums
        if self.layer.bias is not None:
            bias = torch.bmm(factors[self.layer.bias][:, None], bias)
        return self._named(weight[:, None], bias)

    def _named(self, weight: Tensor, bias: Tensor) -> Parameters:
        found = {self.layer.weight: self.layer.weight_like(weight, self.like)}
        return found if self.layer.bias is None else {**found, self.layer.bias: bias}
