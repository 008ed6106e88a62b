"""Slot `start`: first guesses made from public examples, none of which is a victim."""

from __future__ import annotations

import torch
from torch import Tensor

from leakbench.attack.public import channel_moments, public_of
from leakbench.attack.slots.labels import LastLayer
from leakbench.errors import InputError
from leakbench.federated.view import View
from leakbench.part import NonNegative, part
from leakbench.rng import normal
from leakbench.types import Generators

__all__ = ["PublicMean", "PublicNormal", "Surrogate"]


@part("start.public_mean")
class PublicMean:
    """Start from the mean of the public examples plus noise of N(0, deviation^2).

    Without noise, all guesses of a batch are equal.
    """

    deviation: NonNegative = 0.05

    def __call__(self, view: View, rngs: Generators) -> Tensor:
        """Return the first guess; raises InputError where there is no public example."""
        mean = public_of(view, "public_mean").inputs.mean(0)
        return mean + self.deviation * _standard_normal(view, rngs)


@part("start.public_normal")
class PublicNormal:
    """Draw from N(m, s^2) with m and s of the public examples' channels: N(0, 1) in standardised inputs, as Inverting Gradients."""

    def __call__(self, view: View, rngs: Generators) -> Tensor:
        """Return the first guess, unclamped; raises InputError where there is no public example."""
        mean, deviation = channel_moments(public_of(view, "public_normal"))
        return mean + deviation * _standard_normal(view, rngs)


@part("start.surrogate")
class Surrogate:
    """Start from a public example of another class than the one that the last layer's gradient shows (CPL's released code).

    It is drawn for each example of a batch. Where the label is inferred wrongly, the class may be the victim's.
    """

    def __call__(self, view: View, rngs: Generators) -> Tensor:
        """Return the first guess; raises InputError where no public example is of another class."""
        public = public_of(view, "surrogate")
        others = LastLayer()(view, rngs).targets.argmax(-1)[..., None].cpu() != public.labels.cpu()
        if not others.any(-1).all():
            raise InputError("public: every public example is of the victim's class, 'surrogate' needs another one")
        order = torch.stack([torch.rand(others.shape[1:], generator=rng) for rng in rngs])
        chosen = order.masked_fill(~others, -1.0).argmax(-1).to(public.inputs.device)
        return public.inputs[chosen].to(next(iter(view.update.values())))


def _standard_normal(view: View, rngs: Generators) -> Tensor:
    like = next(iter(view.update.values()))
    return normal(like.new_zeros(view.victims, 1, *view.shape), rngs, view.examples)
