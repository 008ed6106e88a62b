"""An imprint with separate columns for each client, which separates the clients in the sum of secure aggregation."""

from __future__ import annotations

from typing import Annotated

import torch
from pydantic import Field

from leakbench.attack.needs import PLAIN, Needs
from leakbench.attack.servers.imprint import Bins, edges_of, imprinted, known_inputs
from leakbench.core.part import Count, Positive, part
from leakbench.core.types import Network
from leakbench.federated.view import Knowledge, Public

__all__ = ["Loki"]


@part("server.loki")
class Loki:
    """Send each client of a cohort a model whose imprint uses different columns (Zhao et al., LOKI, S&P 2024, arXiv:2303.12233).

    Each row has a bin of mean brightness, as in `imprint`, and columns for one copy of the input per client. Client c reads only
    copy c, so that its images are in these columns of the sum. The paper does this with the kernels of a convolution: identities
    for the client's own channels and zeros for all others. For any number of clients in the sum, the expected share of the n
    examples of a client that are alone is (1 - 1 / k)^(n - 1). The clients share the biases, whose gradients mix them, so rows are
    read by the middle of their bin. Under plain aggregation there is one block.
    """

    bins: Annotated[Count, Field(description="k, the number of bins of one client.")] = 256
    gain: Annotated[Positive, Field(description="Size of the return path.")] = 1.0
    public: Annotated[
        Count, Field(description="Largest number of public examples for the quantiles of the cutoffs.")
    ] = 10_000

    @property
    def needs(self) -> Needs:
        """Public examples, for the cutoffs."""
        return Needs(public=self.public, kinds=PLAIN)

    @property
    def threat(self) -> str:
        """`malicious architecture`: a layer is added, with a block for each client."""
        return "malicious architecture"

    def __call__(
        self, network: Network, public: Public, knowledge: Knowledge, rng: torch.Generator
    ) -> tuple[Network, Bins]:
        """Return the network with its blocks, and their bins; raises InputError with fewer than two public examples."""
        known = known_inputs("loki", network, public, self.public)
        functional = known.new_full((known.shape[1],), 1 / known.shape[1])
        edges = edges_of(known @ functional, self.bins)
        return imprinted(network, functional, edges, self.gain / self.bins, False, knowledge.clients)
