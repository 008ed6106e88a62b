"""Learning To Invert: a network trained on public examples that maps observed gradients to examples."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor, nn

from leakbench.attack.learn.origin import learned, origin_of
from leakbench.attack.needs import PLAIN, Needs
from leakbench.attack.one_step import answered_at_once
from leakbench.attack.public import public_of
from leakbench.attack.public_gradients import check_learnable, flat, gradients_alone, numbers
from leakbench.core.answers import Reconstruction
from leakbench.core.errors import InputError
from leakbench.core.part import Count, Positive, part
from leakbench.core.rng import generator
from leakbench.core.types import Generators, Parameters
from leakbench.federated.view import Public, View
from leakbench.models.initialise import initialise, torch_default

__all__ = ["Hashing", "Inverter", "LearningToInvert"]


@dataclass(frozen=True)
class Hashing:
    """Feature hashing: sums of a gradient's numbers over random bins.

    Args:
        size: Number of bins.
        bins: The bin (p,) int64 of each number of a gradient; None if nothing is summed.
    """

    size: int
    bins: Tensor | None

    def __call__(self, gradients: Tensor) -> Tensor:
        """Return the sums (n, size) of gradients (n, p), added without random signs."""
        if self.bins is None:
            return gradients
        sums = gradients.new_zeros(len(gradients), self.size)
        return sums.index_add(1, self.bins.to(gradients.device), gradients)


@dataclass(frozen=True)
class Inverter:
    """A trained network that maps gradients to inputs.

    Args:
        hashing: Applied to a gradient first.
        net: (n, size) -> (n, d).
        shape: Shape (*s) of one input.
    """

    hashing: Hashing
    net: nn.Module
    shape: tuple[int, ...]

    def tensors(self) -> Parameters:
        """Return the tensors {name: tensor} to be stored."""
        bins = {} if self.hashing.bins is None else {"bins": self.hashing.bins}
        return {**self.net.state_dict(), **bins}

    def __call__(self, gradients: Tensor) -> Tensor:
        """Return inputs (n, *s) for observed gradients (n, p)."""
        with torch.no_grad():
            inputs: Tensor = self.net(self.hashing(gradients)).reshape(-1, *self.shape)
        return inputs


@part("method.learning_to_invert")
class LearningToInvert:
    """Minimise E |f(D(g(x))) - x|^2 over public x (Wu, Chen, Guo, Weinberger, UAI 2023, arXiv:2210.10880).

    f: three linear layers p - hidden - hidden - pixels with ReLUs between them and a sigmoid at the end, trained by Adam. After
        three quarters of the epochs, the learning rate drops to a tenth. D: the defense as far as the attacker knows it, applied
        again in every step.
    """

    hidden: Annotated[Count, Field(description="Width of the hidden layers.")] = 3000
    epochs: Annotated[Count, Field(description="Number of passes over the public examples in training.")] = 200
    hashed: Annotated[
        float,
        Field(
            gt=0,
            le=1,
            description=(
                "Share of p to which gradients are summed in random bins without signs (feature hashing); "
                "1 for all of p."
            ),
        ),
    ] = 1.0
    public: Annotated[Count, Field(description="Largest number of public examples for training.")] = 10_000
    batch: Annotated[Count, Field(description="Number of examples in a step.")] = 256
    learning_rate: Annotated[Positive, Field(description="Learning rate of training.")] = 1e-4
    seed: Annotated[int, Field(ge=0, description="Seed of all random draws.")] = 0

    @property
    def needs(self) -> Needs:
        """Public examples, and updates of one example each."""
        return Needs(alone=True, public=self.public, kinds=PLAIN)

    def __call__(self, views: tuple[View, ...], rngs: Generators) -> Reconstruction:
        """Reconstruct V victims, in [0, 1]; training uses the recipe's seed, not the victims' generators.

        Returns:
            NaN if the attacked model has diverged.

        Raises:
            InputError: For several views, for batches, if each victim has its own network, and without public examples.
        """
        if len(views) > 1:
            raise InputError(
                "learning_to_invert: it reads one look at one round, got several (leave --observations and --join-rounds out)"
            )
        [view] = views
        check_learnable(view, "learning_to_invert")
        public = public_of(view, "learning_to_invert", self.public)
        origin = origin_of("learning_to_invert", __name__, dataclasses.asdict(self), public, views)
        rng = generator(self.seed, "learning to invert")
        tensors, fit = learned(view, origin, public, lambda: self.trained(view, public, rng).tensors())
        inverter = self._inverter(view, tensors)
        return answered_at_once(views, inverter(flat(view.update))[:, None], rngs, fit)

    def _inverter(self, view: View, tensors: Parameters) -> Inverter:
        """Return the stored network."""
        like = next(iter(view.network.parameters.values()))
        hashing = Hashing(math.ceil(self.hashed * numbers(view)), tensors.get("bins"))
        net = _layers(hashing.size, self.hidden, math.prod(view.shape)).to(like)
        net.load_state_dict({name: tensor for name, tensor in tensors.items() if name != "bins"})
        return Inverter(hashing, net, view.shape)

    def trained(self, view: View, public: Public, rng: torch.Generator) -> Inverter:
        """Return a network trained for the view's network and defense; the observed update is not read."""
        hashing = _hashing(numbers(view), self.hashed, rng)
        like = next(iter(view.network.parameters.values()))
        net = initialise(_layers(hashing.size, self.hidden, math.prod(view.shape)), torch_default, rng).to(like)
        optimiser = torch.optim.Adam(net.parameters(), lr=self.learning_rate)
        for epoch in range(self.epochs):
            if epoch and epoch == int(0.75 * self.epochs):
                optimiser.param_groups[0]["lr"] = self.learning_rate / 10
            for some in torch.split(torch.randperm(len(public.labels), generator=rng), self.batch):
                known = public.at(some)
                gradients = torch.cat(list(gradients_alone(view, known, self.batch, rng)))
                _step(net, optimiser, hashing(gradients), known.inputs.to(like))
        return Inverter(hashing, net, view.shape)


def _hashing(numbers: int, share: float, rng: torch.Generator) -> Hashing:
    size = math.ceil(share * numbers)
    return Hashing(size, None if share == 1 else torch.randint(size, (numbers,), generator=rng))


def _layers(size: int, hidden: int, pixels: int) -> nn.Module:
    """Return the layers without values, which the caller initialises or loads."""
    sides = ((size, hidden), (hidden, hidden), (hidden, pixels))
    first, second, last = (nn.Linear(*side, device="meta") for side in sides)
    return nn.Sequential(first, nn.ReLU(), second, nn.ReLU(), last, nn.Sigmoid()).to_empty(device="cpu")


def _step(net: nn.Module, optimiser: torch.optim.Optimizer, gradients: Tensor, inputs: Tensor) -> None:
    with torch.enable_grad():
        loss = (net(gradients) - inputs.flatten(1)).square().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
