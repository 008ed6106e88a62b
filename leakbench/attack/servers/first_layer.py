"""Servers that only choose the values of a fully connected first layer, so that few examples activate each row."""

from __future__ import annotations

import dataclasses
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from leakbench.attack.needs import PLAIN, Needs
from leakbench.attack.servers.imprint import known_inputs
from leakbench.core.errors import InputError
from leakbench.core.part import Count, Positive, part
from leakbench.core.types import Network
from leakbench.federated.view import Knowledge, Public
from leakbench.models.layers import first_layer

__all__ = ["QuantileRows", "TrapWeights"]


@part("server.trap")
class TrapWeights:
    """Make half of each row negative and the other half positive and s times as large (Boenisch et al., arXiv:2112.02918).

    Few inputs activate such a row, because its negative half outweighs the other. The halves are drawn for each row. The bias is
    zero.
    """

    needs: ClassVar[Needs] = Needs(kinds=PLAIN)

    s: Annotated[
        Positive,
        Field(
            description=(
                "Size of the positive half relative to the negative one. The paper's table 4 has .7 for MNIST, .95 for CIFAR-10 "
                "and .99 for ImageNet; a wrong value activates all rows or none."
            )
        ),
    ] = 0.95
    deviation: Annotated[
        Positive,
        Field(description="Standard deviation of the Gaussian from which the entries are drawn."),
    ] = 0.5

    @property
    def threat(self) -> str:
        """`malicious parameters`: values are chosen, no layer is added."""
        return "malicious parameters"

    def __call__(
        self, network: Network, public: Public, knowledge: Knowledge, rng: torch.Generator
    ) -> tuple[Network, None]:
        """Return the network with its first layer rewritten; raises InputError if it does not begin with a linear layer."""
        name, weight = _first(network, "trap", public)
        rows, inputs = weight.shape
        size = (self.deviation * torch.randn(rows, inputs, generator=rng)).abs()
        positive = torch.rand(rows, inputs, generator=rng).argsort(1) < inputs // 2
        return _with(
            network, name, torch.where(positive, self.s * size, -size).to(weight), weight.new_zeros(rows)
        ), None


@part("server.quantile_rows")
class QuantileRows:
    """Draw random rows, each with a bias at which one of n examples activates it (Nowak et al., QBI, arXiv:2406.18745).

    Row j is w_j ~ N(0, I). Its bias is minus the (1 - 1 / n) quantile of w_j . x over public examples; the paper takes the
    quantile of a Gaussian. n is the number of examples in one update.
    """

    public: Annotated[
        Count, Field(description="Largest number of public examples for the quantiles of the biases.")
    ] = 10_000

    @property
    def needs(self) -> Needs:
        """Public examples for the quantiles."""
        return Needs(public=self.public, kinds=PLAIN)

    @property
    def threat(self) -> str:
        """`malicious parameters`: values are chosen, no layer is added."""
        return "malicious parameters"

    def __call__(
        self, network: Network, public: Public, knowledge: Knowledge, rng: torch.Generator
    ) -> tuple[Network, None]:
        """Return the network with its first layer rewritten.

        Raises:
            InputError: If it does not begin with a linear layer, or with fewer than two public examples.
        """
        name, weight = _first(network, "quantile_rows", public)
        known = known_inputs("quantile_rows", network, public, self.public)
        drawn = torch.randn(weight.shape, generator=rng).to(weight)
        share = 1 - 1 / max(2, knowledge.examples)
        return _with(network, name, drawn, -(known @ drawn.T).quantile(share, dim=0)), None


def _first(network: Network, server: str, public: Public) -> tuple[str, Tensor]:
    name = first_layer(network.model, public.inputs.shape[1:])
    if name is None:
        raise InputError(
            f"{server}: it rewrites a biased linear first layer, with which this network does not begin; choose one that does"
            " (mlp_1000)"
        )
    return name, network.parameters[f"{name}weight"]


def _with(network: Network, name: str, weight: Tensor, bias: Tensor) -> Network:
    return dataclasses.replace(network, parameters={**network.parameters, f"{name}weight": weight, f"{name}bias": bias})
