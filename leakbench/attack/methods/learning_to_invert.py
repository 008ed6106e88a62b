"""Learning To Invert: a network that is trained on public examples to turn what leaks into the example behind it."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor, nn

from leakbench.answers import Reconstruction
from leakbench.attack.learn.origin import learned, origin_of
from leakbench.attack.needs import Needs
from leakbench.attack.one_step import answered_at_once
from leakbench.attack.public import public_of
from leakbench.attack.public_gradients import check_learnable, flat, gradients_alone, numbers
from leakbench.errors import InputError
from leakbench.federated.view import Public, View
from leakbench.models.initialise import initialise, torch_default
from leakbench.part import Count, Positive, part
from leakbench.rng import generator
from leakbench.types import Generators, Parameters

__all__ = ["Hashing", "Inverter", "LearningToInvert"]


@dataclass(frozen=True)
class Hashing:
    """bins: (p,) int64, to which of `size` sums each number of a gradient is added; None where every number stays alone."""

    size: int
    bins: Tensor | None

    def __call__(self, gradients: Tensor) -> Tensor:
        """Return the sums (n, size) of gradients (n, p), without signs."""
        if self.bins is None:
            return gradients
        sums = gradients.new_zeros(len(gradients), self.size)
        return sums.index_add(1, self.bins.to(gradients.device), gradients)


@dataclass(frozen=True)
class Inverter:
    """What was learned.

    Args:
        net: What hashing left of a gradient -> (n, d).
    """

    hashing: Hashing
    net: nn.Module
    shape: tuple[int, ...]

    def tensors(self) -> Parameters:
        """Return it as {name: tensor}, to be kept."""
        bins = {} if self.hashing.bins is None else {"bins": self.hashing.bins}
        return {**self.net.state_dict(), **bins}

    def __call__(self, gradients: Tensor) -> Tensor:
        """Return inputs (n, *s) for what leaked, (n, p)."""
        with torch.no_grad():
            found: Tensor = self.net(self.hashing(gradients)).reshape(-1, *self.shape)
        return found


@part("method.learning_to_invert")
class LearningToInvert:
    """Minimise E |f(D(g(x))) - x|^2 over public x (Wu, Chen, Guo, Weinberger, UAI 2023, arXiv:2210.10880).

    f: three linear layers p - hidden - hidden - pixels with ReLU between them and a sigmoid at the end, trained by Adam. After
    three quarters of the epochs, its rate is a tenth. D: the defense as far as the attacker knows it, applied again in every
    step.
    """

    hidden: Count = 3000
    epochs: Count = 200
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
    learning_rate: Positive = 1e-4
    seed: Annotated[int, Field(ge=0, description="Seed of all random draws.")] = 0

    @property
    def needs(self) -> Needs:
        """Public examples, and one example behind what leaked."""
        return Needs(alone=True, public=self.public)

    def __call__(self, views: tuple[View, ...], rngs: Generators) -> Reconstruction:
        """Answer for V victims, in [0, 1]; what is learned depends on the recipe's seed and not on the victims' generators.

        NaN where the model has diverged. Raises InputError for several views, batches, networks of the victims' own, and
        without public examples.
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
        """Return the network that was kept."""
        like = next(iter(view.network.parameters.values()))
        hashing = Hashing(math.ceil(self.hashed * numbers(view)), tensors.get("bins"))
        net = _layers(hashing.size, self.hidden, math.prod(view.shape)).to(like)
        net.load_state_dict({name: tensor for name, tensor in tensors.items() if name != "bins"})
        return Inverter(hashing, net, view.shape)

    def trained(self, view: View, public: Public, rng: torch.Generator) -> Inverter:
        """Return what is learned of the view's network and defense, for which alone it holds; nothing that leaked is read."""
        hashing = _hashing(numbers(view), self.hashed, rng)
        like = next(iter(view.network.parameters.values()))
        net = initialise(_layers(hashing.size, self.hidden, math.prod(view.shape)), torch_default, rng).to(like)
        optimiser = torch.optim.Adam(net.parameters(), lr=self.learning_rate)
        for epoch in range(self.epochs):
            if epoch and epoch == int(0.75 * self.epochs):
                optimiser.param_groups[0]["lr"] = self.learning_rate / 10
            for some in torch.split(torch.randperm(len(public.labels), generator=rng), self.batch):
                known = Public(public.inputs[some], public.labels[some])
                gradients = torch.cat(list(gradients_alone(view, known, self.batch, rng)))
                _step(net, optimiser, hashing(gradients), known.inputs.to(like))
        return Inverter(hashing, net, view.shape)


def _hashing(numbers: int, share: float, rng: torch.Generator) -> Hashing:
    size = math.ceil(share * numbers)
    return Hashing(size, None if share == 1 else torch.randint(size, (numbers,), generator=rng))


def _layers(size: int, hidden: int, pixels: int) -> nn.Module:
    """Return the network without values: whoever builds it draws them."""
    sides = ((size, hidden), (hidden, hidden), (hidden, pixels))
    first, second, last = (nn.Linear(*side, device="meta") for side in sides)
    return nn.Sequential(first, nn.ReLU(), second, nn.ReLU(), last, nn.Sigmoid()).to_empty(device="cpu")


def _step(net: nn.Module, optimiser: torch.optim.Optimizer, seen: Tensor, inputs: Tensor) -> None:
    with torch.enable_grad():
        loss = (net(seen) - inputs.flatten(1)).square().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
