"""Slot `pooling`: how the results of several searches for one victim become one reconstruction."""

from __future__ import annotations

from typing import ClassVar, Protocol, runtime_checkable

import torch
from torch import Tensor

from leakbench.attack.needs import TABULAR, Needs
from leakbench.attack.slots.space_tables import layout_of
from leakbench.core.part import part
from leakbench.core.recipe import Slot
from leakbench.federated.view import View
from leakbench.measure.metrics_tables import match_features

__all__ = ["POOLING", "Least", "Mean", "Median", "Pooling"]


@runtime_checkable
class Pooling(Protocol):
    """Combines the results of n searches."""

    def __call__(self, guesses: Tensor, values: Tensor, view: View) -> Tensor:
        """Return inputs (V, M, *s), given the results (n, V, M, *s) of n searches and their distances `values` (n, V)."""


@part("pooling.least")
class Least:
    """Return the guess with the smallest distance."""

    def __call__(self, guesses: Tensor, values: Tensor, view: View) -> Tensor:
        """Return the best guesses."""
        best = values.nan_to_num(nan=torch.inf).argmin(0)
        return guesses[best, torch.arange(len(best), device=best.device)]


def _aligned(guesses: Tensor, values: Tensor, view: View, who: str) -> Tensor:
    """Return the guesses (n, V, M, d), each batch in the order of the best guess; NaN if the distance is not finite."""
    columns = layout_of(view, who)
    many, victims, members = guesses.shape[:3]
    guesses = torch.where(values.isfinite()[..., None, None], guesses, torch.nan)
    best = columns.hardened(Least()(guesses, values, view)).expand_as(guesses)
    order = match_features(guesses.flatten(0, 1), best.flatten(0, 1), columns).reshape(many, victims, members, 1)
    return guesses.gather(2, order.expand_as(guesses))


@part("pooling.median")
class Median:
    """Pool tables by the median, as in TabLeak (Vero et al., ICML 2023, arXiv:2210.01785; released code, `median+softmax`).

    The records of each guess are matched to those of the best one by their features. Each column is then its median over the n
    guesses, the lower one for an even n, as in the released code. The best guess is the one with the smallest distance; in the
    released code, it is the one whose hardened records have the smallest distance. Raises InputError if the inputs are not a table.
    """

    needs: ClassVar[Needs] = Needs(kinds=(TABULAR,))

    def __call__(self, guesses: Tensor, values: Tensor, view: View) -> Tensor:
        """Return the pooled records."""
        return _aligned(guesses, values, view, "median").nanmedian(0).values


@part("pooling.mean")
class Mean:
    """Pool tables as `median` does, with the mean of each column over the n guesses (released code, `soft_avg+softmax`)."""

    needs: ClassVar[Needs] = Needs(kinds=(TABULAR,))

    def __call__(self, guesses: Tensor, values: Tensor, view: View) -> Tensor:
        """Return the pooled records."""
        return _aligned(guesses, values, view, "mean").nanmean(0)


POOLING = Slot("pooling", ("leakbench.attack.slots",))
