"""Squared distances and cosines of guesses' gradients and those of one example, without the gradients of linear layers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from torch import Tensor

from leakbench.core.types import Parameters
from leakbench.engine.chain import Chain
from leakbench.engine.matched import Observed, observed, one_minus_cosine, squared_distance
from leakbench.federated.client import chain_in
from leakbench.federated.view import View, neighbours

__all__ = ["Guess", "SquaredDistances", "squared_distances"]

Guess: TypeAlias = tuple[Tensor, Tensor, Tensor]
"""Inputs (n, 1, *s) and labels (n, 1, classes) of guesses, and the positions (n,) of the victims that they are compared with."""


@dataclass(frozen=True)
class SquaredDistances:
    """The squared distances of guesses' gradients from the observed ones, for a view whose updates are gradients of one example.

    Args:
        chain: The layers of the network.
        parameters: The network's parameters in the chain's memory layout.
        seen: The observed gradients of all victims.
    """

    chain: Chain
    parameters: Parameters
    seen: Observed

    def __call__(self, inputs: Tensor, targets: Tensor, victims: Tensor) -> Tensor:
        """Return the distances (n,) of guesses (n, 1, *s) with labels (n, 1, classes) for the victims in `victims` (n,)."""
        return squared_distance(self.chain, self.parameters, self._seen(victims), inputs, targets)

    def one_minus_cosine(self, inputs: Tensor, targets: Tensor, victims: Tensor) -> Tensor:
        """Return one minus the cosines (n,) of the angles between the gradients."""
        return one_minus_cosine(self.chain, self.parameters, self._seen(victims), inputs, targets)

    def _seen(self, victims: Tensor) -> Observed:
        where = neighbours(victims)
        return self.seen.of(victims if where is None else where)


def squared_distances(view: View) -> SquaredDistances | None:
    """Return the squared distances for a view; None if its updates need the gradients of guesses.

    They need them if they are not the gradient of one example, and behind networks that `leakbench.engine` does not compute.
    """
    network = view.network
    same = all(p.dtype == view.like.dtype for p in network.parameters.values())
    chain = chain_in(network, view.shape) if view.of_one_example and network.shared and same else None
    if chain is None:
        return None
    return SquaredDistances(chain, chain.laid_out(network.parameters), observed(chain, view.update))
