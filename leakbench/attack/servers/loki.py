"""An imprint for each client in columns of its own, so that the sum of secure aggregation falls apart into clients."""

from __future__ import annotations

import torch

from leakbench.attack.needs import Needs
from leakbench.attack.servers.imprint import Bins, edges_of, imprinted, known_inputs
from leakbench.federated.view import Knowledge, Public
from leakbench.part import Count, Positive, part
from leakbench.types import Network

__all__ = ["Loki"]


@part
class Loki:
    """Send every client of a cohort a model whose imprint sits in other columns (Zhao et al., LOKI, S&P 2024, arXiv:2303.12233).

    Rows with a bin of their own as in `imprint`, of mean brightness, with columns for a copy of the input a client; client c is let
    into copy c alone (in the paper by kernels of a convolution, identities for its own channels and zeros for all others), so that
    its pictures come to lie in these columns of the sum, and of n examples of a client (1 - 1 / k)^(n - 1) are expected to be
    alone, however many clients are summed up. The bias is shared, and its gradient mixes clients: rows are read by the middle of
    their bin. Under plain aggregation there is one block.
    bins: k, how many a client.  gain: the size of the way back.  public: how many public examples the cutoffs are quantiles of.
    """

    bins: Count = 256
    gain: Positive = 1.0
    public: Count = 10_000

    @property
    def needs(self) -> Needs:
        """Public examples for the cutoffs."""
        return Needs(public=self.public)

    @property
    def threat(self) -> str:
        """A layer is added, another for each client."""
        return "malicious architecture"

    def __call__(
        self, network: Network, public: Public, knowledge: Knowledge, rng: torch.Generator
    ) -> tuple[Network, Bins]:
        """Return the network behind its blocks, and their bins; raises InputError of fewer than two public examples."""
        known = known_inputs("loki", network, public, self.public)
        functional = known.new_full((known.shape[1],), 1 / known.shape[1])
        edges = edges_of(known @ functional, self.bins)
        return imprinted(network, functional, edges, self.gain / self.bins, False, knowledge.clients)
