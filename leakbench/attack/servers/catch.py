"""The catch of a fishing server: it turns the view of a batch into a view of the one example that was caught."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import torch
from torch import Tensor

from leakbench.defense.transform import Stations
from leakbench.federated.view import Public, View

__all__ = ["Catch"]

EMPTY = 1e-4
"""A row of class c whose gradient is below this share of the largest other row's contains no example of the class."""


@dataclass(frozen=True)
class Catch:
    """The information with which a fishing server reads its catch.

    Args:
        layer: Prefix of the last layer's parameters.
        of: The class c.
        row: W_c (d,) of a last layer that catches every example of class c. For an example that the sent layer caught, it gives
            the gradient of the layers below divided by `scale`.
        bias: b_c of that last layer; None if it has no bias.
        scale: See `row`.
        chance: Probability of exactly one catch in a batch, by the public examples.
    """

    layer: str
    of: int
    row: Tensor
    bias: float | None
    scale: float
    chance: float

    def isolated(self, view: View) -> tuple[View, Tensor]:
        """Return the view of the caught example, M = 1, and (V,) bool, whether the batch of a victim shows a catch.

        The gradients below the last layer are M times the observed ones. The last layer's gradient is filled in from its row c,
        and the label is c. The network of the view catches every example of class c and gives the caught one the same gradient,
        so that a search need not first find the right side of a threshold. If several examples were caught, their gradients are
        summed, and the reconstruction is a mean of them.

        The view is exact after one iteration if the defense acts only on examples; it contains these stations. Later stations are
        left out: a clip leaves the direction right and the length too small; pruning and further iterations change both. The
        view's noise has M times the deviation, which is too much in the rows that are filled in. Public examples of class c come
        first.
        """
        sent, many = view.network.parameters, view.examples
        weight, bias = (f"{self.layer}{kind}" for kind in ("weight", "bias"))
        # Noise and stations that act on examples depend on the length of the sent gradient.
        size = 1.0 if view.noise is None and not view.stations.example else self.scale
        update = {n: many * size / self.scale * u for n, u in view.update.items()}
        mine = many * view.update[weight][:, self.of]
        others = many * view.update[weight].flatten(2).norm(dim=2).amax(1)
        update[weight] = self._filled(mine, view.classes)
        twin = {**sent, weight: self._alone(size * self.row, sent[weight])}
        if self.bias is not None:
            update[bias] = self._filled(many * view.update[bias][:, self.of], view.classes)
            twin[bias] = self._alone(self.row.new_tensor(size * self.bias), sent[bias])
        alone = dataclasses.replace(
            view,
            network=dataclasses.replace(view.network, parameters=twin),
            update=update,
            batch=1,
            cohort=1,
            local_steps=1,
            epochs=1,
            apart=False,
            knowledge=dataclasses.replace(view.knowledge, examples=1),
            stations=Stations(example=view.stations.example),
            noise=None if view.noise is None else many * view.noise,
            labels=torch.full((view.victims, 1), self.of, device=mine.device),
            logits=None,
            public=None if view.public is None else self._first(view.public),
        )
        return alone, mine.norm(dim=1) > EMPTY * others

    def _alone(self, row: Tensor, like: Tensor) -> Tensor:
        """Return a parameter of the last layer that is zero except in row c."""
        parameter = torch.zeros_like(like)
        parameter[self.of] = row
        return parameter

    def _first(self, public: Public) -> Public:
        """Return the public examples, those of class c first, since the network treats the other classes alike."""
        order = (public.labels != self.of).to(torch.int8).argsort(stable=True)
        return public.at(order)

    def _filled(self, mine: Tensor, classes: int) -> Tensor:
        """Return the last layer's gradient (V, classes, ...) for one example of class c, given its row c (V, ...)."""
        filled = (-mine / (classes - 1))[:, None].repeat_interleave(classes, 1)
        filled[:, self.of] = mine
        return filled
