"""Slot `distance`: how far the gradient of a guess is from the leaked one."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from leakbench.federated.leakage import View
from leakbench.types import Parameters, part

__all__ = ["DISTANCES", "Distance", "SquaredL2"]


@runtime_checkable
class Distance(Protocol):
    """Compares two sets of gradients, victim by victim."""

    def __call__(self, guess: Parameters, observed: Parameters, view: View) -> Tensor:
        """Return (V,) distances of {p: (V, *p)} and {p: (V, *p)}; differentiable in `guess`.

        view: what else the attacker knows, such as a defense whose noise makes some differences likelier than others.
        """


@part
class SquaredL2:
    """The sum of squared differences over all layers (DLG: Zhu et al., NeurIPS 2019, eq. 4; CPL the same)."""

    def __call__(self, guess: Parameters, observed: Parameters, view: View) -> Tensor:
        """Return (V,) distances."""
        each = [(g - observed[name]).flatten(1).square().sum(1) for name, g in guess.items()]
        return torch.stack(each).sum(0)


DISTANCES: dict[str, type[Distance]] = {"squared_l2": SquaredL2}
