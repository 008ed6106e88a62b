"""Slot `start`: first guesses from public examples, which do not contain victims."""

from __future__ import annotations

from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from leakbench.attack.needs import PLAIN, Needs
from leakbench.attack.public import channel_moments, public_of
from leakbench.attack.slots.labels import LastLayer
from leakbench.core.errors import InputError
from leakbench.core.part import NonNegative, part
from leakbench.core.rng import normal
from leakbench.core.types import Generators
from leakbench.federated.view import View

__all__ = ["PublicMean", "PublicNormal", "Surrogate"]


@part("start.public_mean")
class PublicMean:
    """Start from the mean of the public examples plus noise of N(0, deviation^2).

    Without noise, all guesses of a batch are equal.
    """

    needs: ClassVar[Needs] = Needs(kinds=PLAIN)

    deviation: Annotated[NonNegative, Field(description="Standard deviation of the noise.")] = 0.05

    def __call__(self, view: View, rngs: Generators) -> Tensor:
        """Return the first guess; raises InputError if the view has no public examples."""
        mean = public_of(view, "public_mean").inputs.mean(0)
        return mean + self.deviation * _standard_normal(view, rngs)


@part("start.public_normal")
class PublicNormal:
    """Draw from N(m, s^2) with m and s of the public examples' channels: N(0, 1) of standardised inputs (Inverting Gradients)."""

    needs: ClassVar[Needs] = Needs(kinds=PLAIN)

    def __call__(self, view: View, rngs: Generators) -> Tensor:
        """Return the first guess, unclamped; raises InputError if the view has no public examples."""
        mean, deviation = channel_moments(public_of(view, "public_normal"))
        return mean + deviation * _standard_normal(view, rngs)


@part("start.surrogate")
class Surrogate:
    """Start from a public example of another class than the one inferred from the last layer's gradient (CPL's released code).

    Each example of a batch gets its own draw. If the label is inferred wrongly, the class can be the victim's. If the
    gradient does not show the labels, any public example can be drawn.
    """

    needs: ClassVar[Needs] = Needs(kinds=PLAIN)

    def __call__(self, view: View, rngs: Generators) -> Tensor:
        """Return the first guess; raises InputError if all public examples have the inferred class."""
        public = public_of(view, "surrogate")
        guess = LastLayer()(view, rngs)
        own = guess.targets.argmax(-1)[..., None].cpu()
        others = torch.ones_like(own, dtype=torch.bool) if guess.joint else own != public.labels.cpu()
        if not others.any(-1).all():
            raise InputError("public: every public example is of the victim's class, 'surrogate' needs another one")
        order = torch.stack([torch.rand(others.shape[1:], generator=rng) for rng in rngs])
        chosen = order.masked_fill(~others, -1.0).argmax(-1).to(public.inputs.device)
        return public.inputs[chosen].to(view.like)


def _standard_normal(view: View, rngs: Generators) -> Tensor:
    like = view.like
    return normal(like.new_zeros(view.victims, 1, *view.shape), rngs, view.examples)
