"""An imprint: rows in front of the network that each keep the one example whose brightness falls between two cutoffs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from leakbench.attack.needs import Needs
from leakbench.errors import InputError
from leakbench.federated.leakage import Knowledge, Public
from leakbench.models import parameters
from leakbench.part import Count, Positive, part
from leakbench.types import Network

__all__ = ["Bins", "Imprint", "Imprinted", "edges_of", "known_inputs"]


@dataclass(frozen=True)
class Bins:
    """What a server remembers of the rows that it put in front of a network: row j is lit by h(x) = w . x above a cutoff.

    layer: the name of their linear layer in the network.  functional: w (d,).  lower, upper: (k,), between which each bin lies.
    signs: (k,), those of the way back from each row.  cumulative: whether a row is lit by all that lies above its cutoff, so that
    the differences of neighbours are the bins; else by its own bin alone.
    clients: how many have rows of their own, k / clients each; they share the biases.
    """

    layer: str
    functional: Tensor
    lower: Tensor
    upper: Tensor
    signs: Tensor
    cumulative: bool
    clients: int = 1


class Imprinted(nn.Module):
    """x -> model(x + sum over rows j of back_j act(w_j . x + b_j)), the same number on every value of x.

    `act` is a ReLU of cumulative rows, and clamps to [0, 1] those with a bin of their own. A sampling network gets its draws.
    """

    def __init__(self, model: nn.Module, inputs: int, rows: int, cumulative: bool) -> None:
        super().__init__()
        self.rows = nn.Linear(inputs, rows)
        self.back = nn.Linear(rows, 1, bias=False)
        self.act = nn.ReLU() if cumulative else nn.Hardtanh(0.0, 1.0)
        self.model = model
        self.draws = int(getattr(model, "draws", 0))

    def forward(self, inputs: Tensor, *draws: Tensor) -> Tensor:
        """Return what the model answers to inputs (n, *s) and their imprint."""
        added = self.back(self.act(self.rows(inputs.flatten(1))))
        answered: Tensor = self.model(inputs + added.reshape(-1, *[1] * (inputs.dim() - 1)), *draws)
        return answered


@part
class Imprint:
    """Put k rows with the cutoffs of k equally likely bins in front of the network (Fowl et al., ICLR 2022).

    An example that is alone in its bin is read exactly from two gradients (`rows`). Of n examples in all, (1 - 1 / k)^(n - 1)
    are expected to be alone.
    bins: k.  functional: what is compared, the mean of all values or a random direction of length 1.  form: `cumulative` rows
    with a ReLU, as published, or `sparse` ones, each lit by its own bin alone, which outlast a pruning and local steps
    (Zhao et al., S&P 2024).  gain: the size of the way back, by which the imprint's share of a clipped gradient grows; its sign
    alternates from row to row, so that what is added to an input stays small.
    target: the value of h that is aimed at in one shot, by the one bin around it that holds 1 / k of the public examples; None for
    all k bins. A value that no public example comes near gets a bin as wide as the nearest 1 / k of them are away.
    public: how many public examples the cutoffs are quantiles of, at most; between two of them they are interpolated.
    """

    bins: Count = 256
    functional: Literal["mean", "random"] = "mean"
    form: Literal["sparse", "cumulative"] = "sparse"
    gain: Positive = 1.0
    target: Annotated[float, Field(allow_inf_nan=False)] | None = None
    public: Count = 10_000

    @property
    def needs(self) -> Needs:
        """Public examples for the cutoffs."""
        return Needs(public=self.public)

    @property
    def threat(self) -> str:
        """A layer is added."""
        return "malicious architecture"

    def __call__(
        self, network: Network, public: Public, knowledge: Knowledge, rng: torch.Generator
    ) -> tuple[Network, Bins]:
        """Return the network behind its imprint, and the bins; raises InputError where there are fewer than two public examples."""
        known = known_inputs("imprint", network, public, self.public)
        size = known.shape[1]
        direction = torch.randn(size, generator=rng) if self.functional == "random" else torch.ones(size)
        functional = (direction / (direction.norm() if self.functional == "random" else size)).to(known)
        cumulative = self.form == "cumulative"
        edges = self._edges(known @ functional)
        rows = len(edges) - 1
        signs = known.new_tensor([1.0, -1.0]).repeat(rows // 2 + 1)[:rows]
        block = Imprinted(network.model, size, rows, cumulative).to(known)
        widths = torch.ones_like(edges[1:]) if cumulative else edges[1:] - edges[:-1]
        with torch.no_grad():
            block.rows.weight.copy_(functional / widths[:, None])
            block.rows.bias.copy_(-edges[:-1] / widths)
            block.back.weight.copy_(self.gain * signs / self.bins)
        block.train(network.model.training)
        own = {name: weights for name, weights in parameters(block).items() if not name.startswith("model.")}
        sent = own | {f"model.{name}": weights for name, weights in network.parameters.items()}
        memory = {f"model.{name}": kept for name, kept in network.memory.items()}
        return Network(block, sent, network.shared, memory), Bins(
            "rows", functional, edges[:-1], edges[1:], signs, cumulative
        )

    def _edges(self, values: Tensor) -> Tensor:
        """Return the cutoffs for public values (P,): of all bins, or of the one around the target.

        Rows that add up need a second one above it, to be taken from the first.
        """
        if self.target is None:
            return edges_of(values, self.bins)
        away = (values - self.target).abs().sort().values
        half = away[max(0, math.ceil(len(away) / self.bins) - 1)].clamp_min(1e-6)
        around = [self.target - half, self.target + half]
        if self.form == "cumulative":
            around.append(torch.maximum(values.max(), around[1]) + 1)
        return torch.stack(around)


def known_inputs(server: str, network: Network, public: Public, most: int) -> Tensor:
    """Return at most so many public inputs (P, d) of the network's type; raises InputError where there are fewer than two."""
    if len(public.labels) < 2:
        raise InputError(
            f"{server}: its cutoffs are quantiles of public examples, got {len(public.labels)}, expected two"
        )
    return public.inputs[:most].flatten(1).to(next(iter(network.parameters.values())))


def edges_of(values: Tensor, bins: int) -> Tensor:
    """Return the k + 1 edges of bins that public values (P,) are equally often in; the outer ones reach beyond all of them."""
    steps = torch.arange(1, bins, device=values.device) / bins
    inner = values.double().quantile(steps.double())
    beyond = values.double().max() - values.double().min()
    edges = torch.cat([(values.min() - beyond)[None].double(), inner, (values.max() + beyond)[None].double()])
    # Where values repeat, as of records, a bin of no width would divide by zero.
    least = 1e-6 * beyond
    return (edges + least * torch.arange(len(edges), device=values.device)).to(values)
