"""An imprint for each client in columns of its own, so that the sum of secure aggregation falls apart into clients."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from leakbench.attack.needs import Needs
from leakbench.attack.servers.imprint import Bins, edges_of, known_inputs
from leakbench.federated.leakage import Knowledge, Public
from leakbench.models import parameters
from leakbench.part import Count, Positive, part
from leakbench.types import Network

__all__ = ["Columns", "Loki"]


class Columns(nn.Module):
    """x -> model(x + what comes back from rows over copies of x, one for each client, of which a client is let into its own).

    The published attack has kernels of a convolution in the stead of `let_in`, identities for a client's own channels and zeros
    for all others. rows: of weight (k, K d) and bias (k,).  let_in: (K,).
    """

    def __init__(self, model: nn.Module, clients: int, rows: int, inputs: int) -> None:
        super().__init__()
        self.let_in = nn.Parameter(torch.ones(clients))
        self.rows = nn.Linear(clients * inputs, rows)
        self.act = nn.Hardtanh(0.0, 1.0)
        self.back = nn.Linear(rows, 1, bias=False)
        self.model = model
        self.draws = int(getattr(model, "draws", 0))

    def forward(self, inputs: Tensor, *draws: Tensor) -> Tensor:
        """Return what the model answers to inputs (n, *s) and their imprint."""
        copies = torch.einsum("c,nd->ncd", self.let_in, inputs.flatten(1)).flatten(1)
        added = self.back(self.act(self.rows(copies)))
        answered: Tensor = self.model(inputs + added.reshape(-1, *[1] * (inputs.dim() - 1)), *draws)
        return answered


@part
class Loki:
    """Send every client of a cohort a model whose imprint sits in other columns (Zhao et al., LOKI, S&P 2024, arXiv:2303.12233).

    Rows with a bin of their own as in `imprint`, of mean brightness; client c is let into block c alone, so that its pictures
    come to lie in the columns of block c of the sum, and of n examples of a client (1 - 1 / k)^(n - 1) are expected to be alone,
    however many clients are summed up. The bias is shared, and its gradient mixes clients: rows are read by the middle of
    their bin. Under plain aggregation there is one block.
    bins: k a client.  gain: the size of the way back.  public: how many public examples the cutoffs are quantiles of.
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
        size, clients = known.shape[1], knowledge.clients
        edges = edges_of(known.mean(1), self.bins)
        widths = edges[1:] - edges[:-1]
        signs = known.new_tensor([1.0, -1.0]).repeat(self.bins // 2 + 1)[: self.bins]
        block = Columns(network.model, clients, self.bins, size).to(known)
        with torch.no_grad():
            block.rows.weight.copy_((1 / size / widths)[:, None].expand(-1, clients * size))
            block.rows.bias.copy_(-edges[:-1] / widths)
            block.back.weight.copy_(self.gain * signs / self.bins)
        block.train(network.model.training)
        own = {name: weights for name, weights in parameters(block).items() if not name.startswith("model.")}
        sent = own | {f"model.{name}": weights for name, weights in network.parameters.items()}
        memory = {f"model.{name}": kept for name, kept in network.memory.items()}
        lower, upper = (e.repeat(clients) for e in (edges[:-1], edges[1:]))
        functional = known.new_full((size,), 1 / size)
        secret = Bins("rows", functional, lower, upper, signs.repeat(clients), cumulative=False, clients=clients)
        let_in = {"let_in": torch.eye(clients).to(known)} if clients > 1 else {}
        return Network(block, sent, network.shared, memory, let_in), secret
