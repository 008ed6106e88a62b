"""Fishing: a last layer under which one class of a whole batch, or about one example of it, moves what lies below.

The last layer answers z = W h + b to features h. With p = softmax(z) an example of class y gives dL/dz = p - e_y and dL/dh = W^T
(p - e_y), through which alone anything below gets its gradient. Here W and b are zero but for the row of class c, so that dL/dh =
W_c (p_c - [y = c]).

Class: z_c lies so far below zero that p_c underflows. Then dL/dh is -W_c for class c and zero for every other class. The other
rows of the last layer's own gradient mix the features of all examples; row c is the sum of -h over those of class c, and db_c
minus their number. One example of class c alone gives p_j = 1 / (C - 1) for all j other than c: its rows j are -1 / (C - 1) of
its row c.

Feature: z_c = s (h_f - theta), or minus that, for a large s. Where z_c is positive, p_c is one and an example of class c is
silent; where it is negative it is caught as above. An example of another class is silent where z_c is negative and caught where
it is positive. That cannot be helped: dL/dh of two labels at the same h differs by the difference of their rows of W, so no last
layer silences two classes at the same features unless it treats them alike everywhere. Caught is who is on the wrong side of
"class c where z_c > 0": of a mixed batch these are few only where the feature tells class c from the others; of a batch of one
class it is whom the quantile says.
"""

from __future__ import annotations

import dataclasses
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from leakbench.attack.needs import Needs
from leakbench.attack.servers.catch import Catch
from leakbench.attack.servers.cut import likeliest_cut, once
from leakbench.attack.servers.server import Server
from leakbench.errors import InputError
from leakbench.federated.view import Knowledge, Public
from leakbench.models.layers import entering, last_layer
from leakbench.part import Count, Positive, part
from leakbench.types import Network

__all__ = ["Fishing", "fished"]

MARGIN = 100.0
"""How far z_c lies below the other logits: exp(-100) is nothing beside one in single precision."""

STEEP = 1e4
"""s, in deviations of the feature: p_c goes from .001 to .999 within .0014 of them, where about one example in 2,000 lies."""


@part("server.fishing")
class Fishing:
    """Catch the examples of one class, or about one of them by a feature (Wen et al., ICML 2022, arXiv:2202.00580)."""

    of: Annotated[int, Field(ge=0, description="The class c to catch.")] = 0
    by: Annotated[
        Literal["class", "feature"],
        Field(
            description=(
                "`class` catches all examples of class c. It catches exactly one of n with probability n q (1 - q)^(n - 1), where"
                " q is the share of class c. `feature` takes the feature, side and threshold with which, on public examples, the "
                "probability of exactly one catch, of class c, is largest: n a (1 - a - o)^(n - 1). Here a is the share of all "
                "examples that are of class c and caught, and o the share of other classes and caught. It is at most about 1 / e."
            )
        ),
    ] = "class"
    share: Annotated[
        Annotated[float, Field(gt=0, le=1)] | None,
        Field(
            description=(
                "q, the share of class c in the batches of the attacked client; None takes the share among public examples. "
                "1: clients of one class."
            )
        ),
    ] = None
    value: Annotated[
        Positive,
        Field(description="Minus the entries of row c, so that features that are not negative push z_c down."),
    ] = 0.5
    bias: Annotated[
        Positive,
        Field(
            description=(
                "-b_c, minus the bias of row c. Without biases, row c gets the length that puts z_c of all public examples below "
                "-100."
            )
        ),
    ] = 1000.0
    public: Annotated[Count, Field(description="Largest number of public examples.")] = 5000

    @property
    def needs(self) -> Needs:
        """Public examples, whose features and classes are counted."""
        return Needs(public=self.public)

    @property
    def threat(self) -> str:
        """Values are chosen, no layer is added."""
        return "malicious parameters"

    def __call__(
        self, network: Network, public: Public, knowledge: Knowledge, rng: torch.Generator
    ) -> tuple[Network, Catch]:
        """Return the network with its last layer rewritten, and how to read it; rng is not drawn from.

        Raises InputError where there is no last linear layer or no such class; for `feature` where the layer has no bias, which
        holds the threshold, or public examples are all of class c or none is; and where a layer has no bias and features of a
        public example sum to zero or less.
        """
        layer = last_layer(network.model)
        if layer is None:
            raise InputError(
                "fishing: it rewrites the last linear layer, and this network has no linear layer; choose another network"
            )
        weight, bias = (f"{layer}{kind}" for kind in ("weight", "bias"))
        if self.of >= len(network.parameters[weight]):
            raise InputError(f"fishing: of: got {self.of}, expected a class below {len(network.parameters[weight])}")
        if len(network.parameters[weight]) < 2:
            raise InputError(
                "fishing: it silences all classes but one, and this network has one; choose another network"
            )
        row, offset, catch = self._row(network, layer, public, knowledge.examples)
        sent = {**network.parameters, weight: torch.zeros_like(network.parameters[weight])}
        sent[weight][self.of] = row
        if offset is not None:
            sent[bias] = torch.zeros_like(network.parameters[bias])
            sent[bias][self.of] = offset
        return dataclasses.replace(network, parameters=sent), catch

    def _row(self, network: Network, layer: str, public: Public, many: int) -> tuple[Tensor, float | None, Catch]:
        """Return W_c, b_c and how to read what they catch of `many` examples."""
        mine = public.labels[: self.public] == self.of
        share = float(mine.double().mean()) if self.share is None else self.share
        biased = f"{layer}bias" in network.parameters
        row = torch.full_like(network.parameters[f"{layer}weight"][0], -self.value)
        if self.by == "class" and biased:
            return row, -self.bias, Catch(layer, self.of, row, -self.bias, 1.0, float(once(share, 0.0, many)))
        inputs = public.inputs[: self.public].to(row)
        if self.by == "class":
            row = -torch.ones_like(row) * _length(entering(network, layer, inputs))
            return row, None, Catch(layer, self.of, row, None, 1.0, float(once(share, 0.0, many)))
        if not biased:
            raise InputError(
                "fishing: by: 'feature' keeps its threshold in a bias, and the last layer has none; fish by class"
            )
        if not 0 < int(mine.sum()) < len(mine):
            raise InputError(
                f"fishing: by: 'feature' compares public examples of class {self.of} with others; got one kind alone"
            )
        cut = likeliest_cut(entering(network, layer, inputs), mine, share, many)
        if cut.chance <= 0:
            raise InputError("fishing: by: 'feature' finds no feature in which public examples differ; fish by class")
        row = torch.zeros_like(row)
        row[cut.feature] = cut.side / cut.deviation
        return STEEP * row, -STEEP * cut.at, Catch(layer, self.of, row, -self.bias - cut.at, STEEP, cut.chance)


def fished(server: Server) -> int | None:
    """Return the class c of which a server isolates one example; None of a server that does not fish."""
    return server.of if isinstance(server, Fishing) else None


def _length(known: Tensor) -> float:
    """Return by what to multiply the sum of features (P, d) so that all reach MARGIN."""
    least = float(known.sum(1).min()) if len(known) else 0.0
    if least <= 0:
        raise InputError(
            "fishing: the last layer has no bias, so that public examples' features have to sum to more than zero, got"
            f" {least:.3g}; choose a network whose last layer has one"
        )
    return MARGIN / least
