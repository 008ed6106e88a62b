"""SEER: a network and a secret projection, trained together so that one kind of example stands out in the projected gradient.

The gradient of the first linear layer is a sum over the examples of d_i z_i^T, with latents z_i and derivatives d_i. The secret
projection u gives the sum of a_i z_i, with a_i = u . d_i, and on the biases the sum of a_i. Training makes a_i small for all
examples except those whose latent has a mean above a threshold, about one in a batch. The quotient is then close to that one
latent. All d_i have about the same length, so that no example stands out for a client without u.
"""

from __future__ import annotations

import dataclasses
import itertools
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn

from leakbench.attack.learn.autoencoder import AutoencoderTraining
from leakbench.attack.learn.origin import learned_by, origin_of
from leakbench.attack.needs import IMAGE, Needs
from leakbench.attack.servers.cut import once
from leakbench.attack.servers.head import Latents, head_of, latents_of
from leakbench.core.errors import InputError
from leakbench.core.fitted import Fits, fitted_anew
from leakbench.core.part import Count, NonNegative, Positive, part
from leakbench.core.rng import generator
from leakbench.core.types import Network, Parameters
from leakbench.federated.view import Knowledge, Public
from leakbench.models import one_hot
from leakbench.models.initialise import torch_default

__all__ = ["Projection", "Seer", "derivatives"]

SOFT = 0.1
"""Width of the sigmoid whose derivative replaces that of a ReLU's step in training."""

FLAT = 0.1
"""Weight of the mean squared logit in the loss, which keeps the predictions, and with them the gradients, away from zero."""

LEAST = 1e-8
"""Added to a_i^2 in the loss, for examples that no row sees at the start."""

OFTEN, FEW = 0.7, 4000
"""Rows start with a quantile of at least `OFTEN` of the latents' means as their cutoff, of `FEW` public examples."""

SHIFTED = 0.5
"""Share of the training examples that are rescaled to the mean of another example of their kind."""


@dataclass(frozen=True)
class Projection:
    """The secret projection of a gradient.

    Args:
        layer: Name of the first linear layer.
        weights: u (k,), of length 1.
        above: The threshold of the latent's mean.
        middle: Mean of the means above it, over public latents.
        chance: Probability of exactly one such example in an update, by the public examples.
        latents: The decoder and the public latents.
    """

    layer: str
    weights: Tensor
    above: float
    middle: float
    chance: float
    latents: Latents


@part("server.seer")
class Seer:
    """Train a network with a secret projection of its gradient (Garov et al., SEER, ICLR 2024, arXiv:2306.03013).

    The published server projects the gradients of a ResNet18 and trains for 10^6 steps. Here the projection is a linear
    combination of the rows of one layer's gradient, with the same objective: small for the other examples of a batch, and large
    for an example with the property. Behind convolutions, which are an autoencoder's encoder, the decoder turns the latent into
    an image. The training starts at rows that lean towards the property, and takes a minute.
    """

    threat: ClassVar[str] = "malicious parameters"

    share: Annotated[
        Annotated[float, Field(gt=0, lt=1)] | None,
        Field(description="Share of public examples with the property; None for one in the examples of an update."),
    ] = None
    lean: Annotated[
        NonNegative,
        Field(
            description=(
                "Size of the common part of the first layer's rows at the start, in deviations of their random parts on public "
                "latents. A larger one is learned faster, and makes the rows more alike."
            )
        ),
    ] = 3.0
    steps: Annotated[Count, Field(description="Number of steps of the joint training.")] = 800
    batch: Annotated[Count, Field(description="Number of examples in a step; a quarter of them has the property.")] = (
        256
    )
    learning_rate: Annotated[Positive, Field(description="Largest learning rate of the joint training.")] = 0.003
    encoder_steps: Annotated[
        Count, Field(description="Number of steps of the autoencoder's training, as in `scale_mia`.")
    ] = 1500
    public: Annotated[Count, Field(description="Largest number of public examples for the training.")] = 10_000

    @property
    def needs(self) -> Needs:
        """Public images."""
        return Needs(public=self.public, kinds=(IMAGE,))

    def __call__(
        self, network: Network, public: Public, knowledge: Knowledge, rng: torch.Generator
    ) -> tuple[Network, Projection]:
        """Return the trained network and the secret projection.

        Raises:
            InputError: If the network does not end with two linear layers with biases (`head_of`), with fewer than two public
                examples, and if fewer than two of them, or all, have the property.
        """
        return self.learn(network, public, knowledge, rng, fitted_anew)

    def learn(
        self, network: Network, public: Public, knowledge: Knowledge, rng: torch.Generator, fits: Fits
    ) -> tuple[Network, Projection]:
        """Return the same, with trained weights from a source of fits."""
        head = head_of("seer", network)
        known = public.first(self.public)
        coder = AutoencoderTraining(self.encoder_steps, 32, 0.003)
        network, latents, values = latents_of("seer", network, head, known, coder, rng, fits)
        share = 1 / max(2, knowledge.examples) if self.share is None else self.share
        means = values.mean(1)
        above = float(means.double().quantile(1 - share))
        property_ = means > above
        if not 1 < int(property_.sum()) < len(property_) - 1:
            raise InputError(
                f"seer: {int(property_.sum())} of {len(property_)} public examples have the property, expected two or more with"
                " and two or more without it; use more public examples, or set another share"
            )
        fields = {
            "server": dataclasses.asdict(self),
            "encoder": repr(head.encoder),
            "widths": head.widths,
            "share": share,
            "type": str(values.dtype),
            "seed": rng.initial_seed(),
        }
        origin = origin_of("seer", __name__, fields, known)

        def make() -> Parameters:
            own = generator(rng.initial_seed(), "seer")  # A stored fit draws nothing from `rng`.
            return self._trained(head.widths, values, one_hot(known.labels, head.widths[-1]), property_, own)

        tensors, fit = learned_by(fits, origin, known, make, values)
        sent = {f"{name}.{kind}": tensors[f"{n}.{kind}"] for n, name in enumerate(head.layers) for kind in KINDS}
        cost = fit if latents.fit is None else dataclasses.replace(fit, seconds=fit.seconds + latents.fit.seconds)
        mine = float(property_.double().mean())
        secret = Projection(
            layer=head.layers[0],
            weights=tensors["projection"],
            above=above,
            middle=float(means[property_].mean()),
            chance=float(once(mine, 0.0, knowledge.examples)),
            latents=dataclasses.replace(latents, fit=cost),
        )
        return dataclasses.replace(network, parameters={**network.parameters, **sent}), secret

    def _trained(
        self, widths: tuple[int, ...], values: Tensor, targets: Tensor, mine: Tensor, rng: torch.Generator
    ) -> Parameters:
        """Return the trained layers {n.weight, n.bias} and the projection.

        Args:
            widths: Numbers of the inputs and outputs of the layers.
            values: Latents (P, d) of the public examples.
            targets: One-hot labels (P, classes).
            mine: (P,) bool, the examples with the property.
            rng: The generator of all draws.
        """
        layers = self._start(widths, values, rng)
        projection = nn.Parameter(torch.randn(widths[1], generator=rng).to(values) / widths[1] ** 0.5)
        optimiser = torch.optim.AdamW(
            [*(p for layer in layers for p in layer.parameters()), projection], lr=self.learning_rate
        )
        cycle = torch.optim.lr_scheduler.OneCycleLR(optimiser, self.learning_rate, total_steps=self.steps + 1)
        kinds = (mine.nonzero()[:, 0], (~mine).nonzero()[:, 0])
        many = (max(1, self.batch // 4), max(1, self.batch - self.batch // 4))
        ratio = float((~mine).double().sum() / mine.double().sum())
        for _ in range(self.steps):
            chosen = [_drawn(kind, n, rng) for kind, n in zip(kinds, many, strict=True)]
            rescaled = [_rescaled(values, kind, own, rng) for kind, own in zip(kinds, chosen, strict=True)]
            with torch.enable_grad():
                own, others = (
                    derivatives(layers, z, targets[which], soft=True) for z, which in zip(rescaled, chosen, strict=True)
                )
                squares = [(d @ projection).square() for d, _ in (own, others)]
                logits = torch.cat([own[1], others[1]])
                noise = ratio * squares[1].mean() / (squares[0] + LEAST)
                loss = (1 + noise).log().mean() + FLAT * logits.square().mean()
                optimiser.zero_grad()
                torch.autograd.backward(loss)
            optimiser.step()
            cycle.step()
        trained = {f"{n}.{kind}": getattr(layer, kind).detach() for n, layer in enumerate(layers) for kind in KINDS}
        return {**trained, "projection": (projection / projection.norm()).detach()}

    @torch.no_grad()
    def _start(self, widths: tuple[int, ...], values: Tensor, rng: torch.Generator) -> list[nn.Linear]:
        """Return the layers at the start; the first one's rows lean to the mean, with cutoffs at large values."""
        layers = [nn.Linear(*sides).to(values) for sides in itertools.pairwise(widths)]
        for layer in layers:
            torch_default(layer, rng)
        few, first = values[:FEW], layers[0]
        spread = (few @ first.weight.T).std(0).mean() / few.mean(1).std()
        first.weight.add_(self.lean * spread / widths[0])
        reached = (few @ first.weight.T).sort(0).values
        places = (OFTEN + (1 - OFTEN) * torch.rand(widths[1], generator=rng)) * (len(few) - 1)
        first.bias.copy_(-reached.gather(0, places.long().to(values.device)[None])[0])
        return layers


KINDS = ("weight", "bias")


def derivatives(layers: list[nn.Linear], latents: Tensor, targets: Tensor, soft: bool = False) -> tuple[Tensor, Tensor]:
    """Return the derivatives of each example's loss by the outputs of the first layer (n, k), and the logits (n, classes).

    Args:
        layers: Linear layers with ReLUs between them.
        latents: (n, d).
        targets: One-hot labels (n, classes).
        soft: Whether the step of a ReLU has the derivative of a sigmoid, for training.
    """
    gates, value = [], latents
    for layer in layers[:-1]:
        value = layer(value)
        step = (value > 0).to(value)
        if soft:
            smooth = (value / SOFT).sigmoid()
            step = step + smooth - smooth.detach()
        gates.append(step)
        value = value.relu()
    logits: Tensor = layers[-1](value)
    back = logits.softmax(1) - targets.to(logits)
    for layer, gate in zip(reversed(layers[1:]), reversed(gates), strict=True):
        back = (back @ layer.weight) * gate
    return back, logits


def _drawn(kind: Tensor, many: int, rng: torch.Generator) -> Tensor:
    """Return `many` of the indices (n,), with replacement."""
    return kind[torch.randint(len(kind), (many,), generator=rng).to(kind.device)]


def _rescaled(values: Tensor, kind: Tensor, chosen: Tensor, rng: torch.Generator) -> Tensor:
    """Return the latents (n, d) of `chosen`, a random half of them scaled to the mean of an example in `kind`.

    Few public examples are in `kind`. Training on these alone would overfit to them.
    """
    wanted = values[_drawn(kind, len(chosen), rng)].mean(1)
    means = values[chosen].mean(1)
    factor = (wanted / means).nan_to_num(1.0, 1.0, 1.0)
    moved = torch.rand(len(chosen), generator=rng).to(values) < SHIFTED
    return values[chosen] * torch.where(moved, factor, 1.0)[:, None]
