"""An imprint for each client in columns of its own, so that the sum of secure aggregation falls apart into clients."""

from __future__ import annotations

from typing import Annotated

import torch
from pydantic import Field

from leakbench.attack.needs import Needs
from leakbench.attack.servers.imprint import Bins, edges_of, imprinted, known_inputs
from leakbench.federated.view import Knowledge, Public
from leakbench.part import Count, Positive, part
from leakbench.types import Network

__all__ = ["Loki"]


@part("server.loki")
class Loki:
    """Send each client of a cohort a model whose imprint uses different columns (Zhao et al., LOKI, S&P 2024, arXiv:2303.12233).

    Rows have a bin of their own, as in `imprint`, of mean brightness, with columns for one copy of the input per client. Client c
    sees copy c alone, so that its images are in these columns of the sum. The paper does this by the kernels of a convolution:
    identities for the client's own channels and zeros for all others. The expected share of the n examples of a client that are
    alone is (1 - 1 / k)^(n - 1), for any number of clients in the sum. The bias is shared, and its gradient mixes clients, so
    rows are read by the middle of their bin. Under plain aggregation there is one block.
    """

    bins: Annotated[Count, Field(description="k, the number of bins of one client.")] = 256
    gain: Annotated[Positive, Field(description="Size of the return path.")] = 1.0
    public: Annotated[
        Count, Field(description="Largest number of public examples for the quantiles of the cutoffs.")
    ] = 10_000

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
