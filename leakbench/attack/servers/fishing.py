"""Fishing: a last layer with which only one class of a batch, or about one example of it, gives the layers below a gradient.

The last layer computes z = W h + b from features h. With p = softmax(z), an example of class y gives dL/dz = p - e_y and
dL/dh = W^T (p - e_y). All layers below get their gradients through dL/dh. Here W and b are zero except for the row of class c, so
that dL/dh = W_c (p_c - [y = c]).

Class: z_c is so far below zero that p_c underflows. Then dL/dh is -W_c for class c and zero for every other class. In the last
layer's own gradient, the other rows mix the features of all examples. Row c is the sum of -h over the class, and db_c is minus
the number of its examples. One example of class c alone gives p_j = 1 / (C - 1) for all j other than c: its rows j are -1 / (C -
1) times its row c.

Feature: z_c = s (h_f - theta), or minus that, for a large s. An example of class c is silent where z_c > 0, since p_c is then
one, and caught where z_c < 0, as above. An example of another class is silent where z_c < 0 and caught where z_c > 0. No last
layer can avoid this: dL/dh of two labels at the same h differs by the difference of their rows of W, so that it silences two
classes at the same features only if it treats them alike everywhere. So the caught examples are those on the wrong side of "class
c where z_c > 0". In a mixed batch they are few only if the feature separates class c from the others. In a batch of one class,
the quantile chooses them.
"""

from __future__ import annotations

import dataclasses
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from leakbench.attack.front import answering_layer
from leakbench.attack.needs import PLAIN, Needs
from leakbench.attack.servers.catch import Catch
from leakbench.attack.servers.cut import likeliest_cut, once
from leakbench.attack.servers.server import Server
from leakbench.core.errors import InputError
from leakbench.core.part import Count, Positive, part
from leakbench.core.task import is_classification
from leakbench.core.types import Network
from leakbench.federated.view import Knowledge, Public
from leakbench.models.layers import entering

__all__ = ["Fishing", "fished"]

MARGIN = 100.0
"""Distance of z_c below the other logits: exp(-100) is negligible compared with one in single precision."""

STEEP = 1e4
"""s, in deviations of the feature: p_c rises from .001 to .999 within .0014 deviations, an interval with one example in 2,000."""


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
    public: Annotated[
        Count, Field(description="Largest number of public examples, for the features and the share of class c.")
    ] = 5000

    @property
    def needs(self) -> Needs:
        """Public examples, for their features and classes."""
        return Needs(public=self.public, kinds=PLAIN)

    @property
    def threat(self) -> str:
        """`malicious parameters`: values are chosen, no layer is added."""
        return "malicious parameters"

    def __call__(
        self, network: Network, public: Public, knowledge: Knowledge, rng: torch.Generator
    ) -> tuple[Network, Catch]:
        """Return the network with its last layer rewritten, and how to read its gradients; rng is not used.

        Raises:
            InputError: If the network has no last linear layer or no class c. For `feature`: if the layer has no bias for the
                threshold, or if all public examples or none are of class c. Without a bias: if the features of a public example
                sum to zero or less.
        """
        shape = public.inputs.shape[1:]
        answering = answering_layer(network, shape)
        if answering is None or not is_classification(network.model):
            raise InputError(
                "fishing: it rewrites the last linear layer, and this network has none that is trained and answers with the class;"
                " choose another network"
            )
        layer = answering.name
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
        """Return W_c, b_c and how to read their catches among `many` examples."""
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
    """Return the class c of a fishing server; None for any other server."""
    return server.of if isinstance(server, Fishing) else None


def _length(known: Tensor) -> float:
    """Return the factor with which the sum of the features (P, d) of each example reaches `MARGIN`."""
    least = float(known.sum(1).min()) if len(known) else 0.0
    if least <= 0:
        raise InputError(
            "fishing: the last layer has no bias, so that public examples' features have to sum to more than zero, got"
            f" {least:.3g}; choose a network whose last layer has one"
        )
    return MARGIN / least
