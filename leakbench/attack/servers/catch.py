"""What a server caught that fished: the view of a batch made the view of the one example that was caught."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import torch
from torch import Tensor

from leakbench.defense.transform import Stations
from leakbench.federated.view import Public, View

__all__ = ["Catch"]

EMPTY = 1e-4
"""A row of class c whose gradient is smaller than this share of the largest other row's holds no example of it."""


@dataclass(frozen=True)
class Catch:
    """What a server remembers of what it fished for.

    Args:
        layer: The prefix of the last layer's parameters.
        of: c. row (d,) and bias: W_c and b_c of a last layer that catches every example of class c; of one that the sent layer
            caught it gives the gradient below over `scale`.
        bias: None of a layer that has none.
        chance: Of catching exactly one example in a batch, by the public examples.
    """

    layer: str
    of: int
    row: Tensor
    bias: float | None
    scale: float
    chance: float

    def isolated(self, view: View) -> tuple[View, Tensor]:
        """Return the view of the one example that was fished, M = 1, and (V,) for which victims anything was.

        What lies below the last layer is M times what leaked, the last layer is filled in from its row c, the label is c. Its
        network catches every example of class c, and gives the caught one the same gradient: a search need not first find the
        right side of a threshold. Where several were caught, their gradients are summed, and what is read is a mean of them.

        Exact after one iteration behind nothing but stations that act on examples, which it keeps. What acts later is left out: a
        later clip leaves the direction right and the length too small, a later pruning and further iterations neither. Of noise,
        M times the deviation is told, which in the rows that are filled in is too much. Public examples of class c come first.
        """
        sent, many = view.network.parameters, view.examples
        weight, bias = (f"{self.layer}{kind}" for kind in ("weight", "bias"))
        # Noise and what acts on examples go by the length of the gradient that was sent.
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
            knowledge=dataclasses.replace(view.knowledge, examples=1),
            stations=Stations(example=view.stations.example),
            noise=None if view.noise is None else many * view.noise,
            labels=torch.full((view.victims, 1), self.of, device=mine.device),
            logits=None,
            public=None if view.public is None else self._first(view.public),
        )
        return alone, mine.norm(dim=1) > EMPTY * others

    def _alone(self, row: Tensor, like: Tensor) -> Tensor:
        """Return a last layer's parameter that is zero but for its row c."""
        found = torch.zeros_like(like)
        found[self.of] = row
        return found

    def _first(self, public: Public) -> Public:
        """Return the public examples with those of class c before all others, which the network does not tell apart."""
        order = (public.labels != self.of).to(torch.int8).argsort(stable=True)
        return Public(public.inputs[order], public.labels[order])

    def _filled(self, mine: Tensor, classes: int) -> Tensor:
        """Return the last layer's gradient (V, classes, ...) for one example of class c, by its row c (V, ...)."""
        filled = (-mine / (classes - 1))[:, None].repeat_interleave(classes, 1)
        filled[:, self.of] = mine
        return filled
