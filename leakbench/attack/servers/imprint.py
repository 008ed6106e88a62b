"""An imprint: rows in front of the network; each keeps the one example whose brightness is between two cutoffs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from leakbench.attack.needs import PLAIN, Needs
from leakbench.core.errors import InputError
from leakbench.core.part import Count, Positive, part
from leakbench.core.types import Network
from leakbench.federated.view import Knowledge, Public
from leakbench.models import parameters
from leakbench.models.batch_norm import in_client_mode, mixes_examples

__all__ = ["Bins", "Imprint", "Imprinted", "edges_of", "imprinted", "known_inputs"]

ENOUGH = 20
"""Mean number of public values per bin from which their quantiles give equally likely bins."""

GRID = 4001
"""Number of points at which a smoothed distribution of public values is computed."""


@dataclass(frozen=True)
class Bins:
    """The bins of an imprint, which the server remembers. Row j is active if h(x) = w . x is above its cutoff.

    Args:
        layer: Name of the rows' linear layer in the network.
        functional: w (d,).
        lower: Lower edges (k,) of the bins.
        upper: Upper edges (k,) of the bins.
        signs: Signs (k,) of the return path from each row.
        cumulative: Whether a row is active for all values above its cutoff, so that differences of neighbours give the bins;
            otherwise it is active for its own bin alone.
        clients: Number of clients with separate columns, k / clients bins each; they share the biases.
    """

    layer: str
    functional: Tensor
    lower: Tensor
    upper: Tensor
    signs: Tensor
    cumulative: bool
    clients: int = 1


class Imprinted(nn.Module):
    """x -> model(x + sum over rows j of back_j act(w_j . x + b_j)), where the same number is added to every value of x.

    `act` is a ReLU for cumulative rows, and a clamp to [0, 1] for rows with a bin of their own. Random numbers go to a stochastic
    model. With K clients, the rows have columns for K copies of x, and `let_in` (K,) is one only for the client's own copy.
    """

    def __init__(self, model: nn.Module, inputs: int, rows: int, cumulative: bool, clients: int = 1) -> None:
        super().__init__()
        self.let_in = nn.Parameter(torch.ones(clients)) if clients > 1 else None
        self.rows = nn.Linear(clients * inputs, rows)
        self.back = nn.Linear(rows, 1, bias=False)
        self.act = nn.ReLU() if cumulative else nn.Hardtanh(0.0, 1.0)
        self.model = model
        self.draws = int(getattr(model, "draws", 0))

    def forward(self, inputs: Tensor, *draws: Tensor) -> Tensor:
        """Return the model's output for inputs (n, *s) plus their imprint."""
        read = inputs.flatten(1)
        if self.let_in is not None:
            read = torch.einsum("c,nd->ncd", self.let_in, read).flatten(1)
        added = self.back(self.act(self.rows(read)))
        answered: Tensor = self.model(inputs + added.reshape(-1, *[1] * (inputs.dim() - 1)), *draws)
        return answered


@part("server.imprint")
class Imprint:
    """Put k rows with the cutoffs of k equally likely bins in front of the network (Fowl et al., ICLR 2022).

    An example that is alone in its bin is read exactly from two gradients (`rows`). The expected share of n examples that are
    alone is (1 - 1 / k)^(n - 1).
    """

    bins: Annotated[Count, Field(description="k, the number of bins.")] = 256
    functional: Annotated[
        Literal["mean", "random"],
        Field(description="The compared value, the mean of all values or a random direction of length 1."),
    ] = "mean"
    form: Annotated[
        Literal["sparse", "cumulative"],
        Field(
            description=(
                "`cumulative` rows with a ReLU, as published, or `sparse` rows, each activated by its own bin alone, which "
                "survive pruning and local steps (Zhao et al., S&P 2024)."
            )
        ),
    ] = "sparse"
    gain: Annotated[
        Positive,
        Field(
            description=(
                "Size of the return path; a larger one raises the imprint's share of a clipped gradient; its sign alternates from"
                " row to row, so that little is added to an input."
            )
        ),
    ] = 1.0
    target: Annotated[
        Annotated[float, Field(allow_inf_nan=False)] | None,
        Field(
            description=(
                "The compared value that one shot aims at, with the one bin around it that contains 1 / k of the public "
                "examples; None for all k bins. For a value far from all public examples, the bin reaches to the nearest 1 / k "
                "of them."
            )
        ),
    ] = None
    public: Annotated[
        Count, Field(description="Largest number of public examples for the quantiles of the cutoffs.")
    ] = 10_000

    @property
    def needs(self) -> Needs:
        """Public examples, for the cutoffs."""
        return Needs(public=self.public, kinds=PLAIN)

    @property
    def threat(self) -> str:
        """`malicious architecture`: a layer is added."""
        return "malicious architecture"

    def __call__(
        self, network: Network, public: Public, knowledge: Knowledge, rng: torch.Generator
    ) -> tuple[Network, Bins]:
        """Return the network with its imprint, and the bins; raises InputError with fewer than two public examples."""
        known = known_inputs("imprint", network, public, self.public)
        size = known.shape[1]
        direction = torch.randn(size, generator=rng) if self.functional == "random" else torch.ones(size)
        functional = (direction / (direction.norm() if self.functional == "random" else size)).to(known)
        edges = self._edges(known @ functional)
        return imprinted(network, functional, edges, self.gain / self.bins, self.form == "cumulative")

    def _edges(self, values: Tensor) -> Tensor:
        """Return the cutoffs of all bins, or of the one around the target, for public values (P,).

        Cumulative rows need a second row above it, whose gradient is subtracted from the first.
        """
        if self.target is None:
            return edges_of(values, self.bins)
        away = (values - self.target).abs().sort().values
        half = away[max(0, math.ceil(len(away) / self.bins) - 1)].clamp_min(1e-6)
        around = [self.target - half, self.target + half]
        if self.form == "cumulative":
            around.append(torch.maximum(values.max(), around[1]) + 1)
        return torch.stack(around)


def imprinted(
    network: Network, functional: Tensor, edges: Tensor, back: float, cumulative: bool, clients: int = 1
) -> tuple[Network, Bins]:
    """Return a network with rows for bins in front of it, and what a server remembers of them.

    Args:
        network: The network.
        functional: w (d,).
        edges: Edges (k + 1,) of the bins, ascending.
        back: Size of the return path from a row.
        cumulative: Whether a row is active for all values above its cutoff.
        clients: Number of clients; each gets its own columns.

    Raises:
        InputError: If a bin has no width.
    """
    rows, size = len(edges) - 1, len(functional)
    if not (edges[1:] > edges[:-1]).all():
        raise InputError(
            "server: public examples are so alike in what the bins compare that some have no width; choose fewer bins"
        )
    signs = edges.new_tensor([1.0, -1.0]).repeat(rows // 2 + 1)[:rows]
    block = Imprinted(network.model, size, rows, cumulative, clients).to(edges)
    widths = torch.ones_like(edges[1:]) if cumulative else edges[1:] - edges[:-1]
    with torch.no_grad():
        block.rows.weight.copy_((functional / widths[:, None]).repeat(1, clients))
        block.rows.bias.copy_(-edges[:-1] / widths)
        block.back.weight.copy_(back * signs)
    in_client_mode(block, "train" if mixes_examples(network.model) else "eval")
    added = {name: weights for name, weights in parameters(block).items() if not name.startswith("model.")}
    sent = added | {f"model.{name}": weights for name, weights in network.parameters.items()}
    memory = {f"model.{name}": buffer for name, buffer in network.memory.items()}
    own = {"let_in": torch.eye(clients).to(edges)} if clients > 1 else {}
    lower, upper, signs = (each.repeat(clients) for each in (edges[:-1], edges[1:], signs))
    bins = Bins("rows", functional, lower, upper, signs, cumulative, clients)
    return Network(block, sent, network.shared, memory, own, network.engine), bins


def known_inputs(server: str, network: Network, public: Public, most: int) -> Tensor:
    """Return up to `most` public inputs (P, d) in the type of the network.

    Args:
        server: Name of the server, for messages.
        network: The network.
        public: The public examples.
        most: Largest number of them.

    Raises:
        InputError: For fewer than two inputs, inputs that are not finite, and inputs that are all equal.
    """
    known = public.inputs[:most].flatten(1).to(next(iter(network.parameters.values())))
    if len(known) < 2:
        raise InputError(f"{server}: its cutoffs are quantiles of public examples, got {len(known)}, expected two")
    if not known.isfinite().all() or bool((known == known[0]).all()):
        raise InputError(
            f"{server}: its cutoffs are quantiles of public examples, got some that are not finite, or all alike"
        )
    return known


def edges_of(values: Tensor, bins: int) -> Tensor:
    """Return the k + 1 edges of k equally likely bins; the outer edges are far beyond all public values.

    Edges are quantiles of the public values (P,) if there are at least `ENOUGH` per bin. Quantiles of fewer values make bins of
    random size: with 292 values and 256 bins, .68 instead of .78 of 64 faces are alone in their bin. In that case, each value is
    replaced by a Gaussian around it, by Silverman's rule (1986, eq. 3.31).

    Args:
        values: Public values (P,) of w . x.
        bins: k.
    """
    known = values.double()
    shares = torch.arange(1, bins, device=known.device, dtype=known.dtype) / bins
    beyond = known.max() - known.min()
    inner = known.quantile(shares) if len(known) >= ENOUGH * bins else _smoothed(known, shares)
    edges = torch.cat([(known.min() - beyond)[None], inner, (known.max() + beyond)[None]])
    # Repeated values, as in records, would give bins of zero width.
    return (edges + 1e-6 * beyond * torch.arange(len(edges), device=known.device)).to(values)


def _smoothed(known: Tensor, shares: Tensor) -> Tensor:
    """Return the quantiles at `shares` (n,) of the values (P,), each widened to a Gaussian."""
    quarters = known.quantile(known.new_tensor([0.25, 0.75]))
    spread = torch.minimum(known.std(), (quarters[1] - quarters[0]) / 1.349)
    width = (0.9 * torch.where(spread > 0, spread, known.std()) * len(known) ** -0.2).clamp_min(1e-6)
    grid = torch.linspace(float(known.min() - 4 * width), float(known.max() + 4 * width), GRID, dtype=known.dtype)
    grid = grid.to(known)
    below = torch.stack(
        [torch.special.ndtr((grid[:, None] - some) / width).sum(1) for some in torch.split(known, 500)]
    ).sum(0)
    below = below / len(known)
    right = torch.searchsorted(below, shares).clamp(1, GRID - 1)
    step = (below[right] - below[right - 1]).clamp_min(torch.finfo(known.dtype).tiny)
    quantiles: Tensor = grid[right - 1] + ((shares - below[right - 1]) / step).clamp(0, 1) * (
        grid[right] - grid[right - 1]
    )
    return quantiles
