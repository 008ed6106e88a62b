"""A small variational autoencoder: a map from a few standard normal numbers to inputs.

D. P. Kingma, M. Welling, "Auto-Encoding Variational Bayes", ICLR 2014, arXiv:1312.6114. The decoder's variance has its optimal
value in closed form (O. Rybkin, K. Daniilidis, S. Levine, "Simple and Effective VAE Training with Calibrated Decoders", ICML
2021, arXiv:2006.13202), so that no factor between the two terms must be chosen.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from leakbench.core.progress import Tick, unticked
from leakbench.core.types import Parameters
from leakbench.models.initialise import initialise, torch_default

__all__ = ["DecoderTraining", "Sides", "Vae", "divergence", "loss", "trained"]

LEAST = 1e-6
"""Smallest mean squared error in the loss, for examples that are all equal."""


@dataclass(frozen=True)
class Sides:
    """Widths of the layers: inputs - hidden - hidden - latent, and back."""

    inputs: int
    hidden: int
    latent: int


@dataclass(frozen=True)
class DecoderTraining:
    """Training by Adam, with a learning rate that falls to zero along a cosine.

    Args:
        epochs: Number of passes over the examples.
        batch: Number of examples in a step.
        learning_rate: The first learning rate.
    """

    epochs: int
    batch: int
    learning_rate: float


class Vae(nn.Module):
    """Linear layers with SiLU between them, so that the decoder is smooth for a search; a sigmoid bounds inputs to [0, 1]."""

    def __init__(self, sides: Sides) -> None:
        super().__init__()
        d, h, k = sides.inputs, sides.hidden, sides.latent
        self.encoder = _layers((d, h), (h, h), (h, 2 * k))
        self.decoder = _layers((k, h), (h, h), (h, d))

    @classmethod
    def of(cls, sides: Sides, tensors: Parameters, like: Tensor) -> Vae:
        """Return the network from stored tensors, without gradients, in the type and on the device of `like`."""
        vae = cls(sides).to_empty(device=like.device).to(like.dtype)
        vae.load_state_dict(tensors)
        return vae.requires_grad_(False)

    def encode(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Return the mean and the logarithm of the variance of the latent (n, k) for inputs (n, d)."""
        mean, log_variance = self.encoder(inputs).chunk(2, -1)
        return mean, log_variance

    def decode(self, latent: Tensor) -> Tensor:
        """Return inputs (n, d) in [0, 1] for latents (n, k)."""
        inputs: Tensor = self.decoder(latent).sigmoid()
        return inputs


def _layers(*sides: tuple[int, int]) -> nn.Sequential:
    """Return the layers without values, which the caller initialises or loads."""
    first, second, third = (nn.Linear(*side, device="meta") for side in sides)
    return nn.Sequential(first, nn.SiLU(), second, nn.SiLU(), third)


def divergence(mean: Tensor, log_variance: Tensor) -> Tensor:
    """Return the Kullback-Leibler divergence (n,) of N(mean, variance) (n, k) from N(0, I), in nats (Kingma, Welling, app. B)."""
    return (mean.square() + log_variance.exp() - 1 - log_variance).sum(-1) / 2


def loss(vae: Vae, inputs: Tensor, noise: Tensor) -> Tensor:
    """Return minus the evidence lower bound of inputs (n, d), averaged over the examples, up to a constant.

    The term d / 2 log(mean squared error) is the Gaussian likelihood at its optimal variance.

    Args:
        vae: The network.
        inputs: (n, d).
        noise: Standard normal (n, k).
    """
    mean, log_variance = vae.encode(inputs)
    missed = (vae.decode(mean + (log_variance / 2).exp() * noise) - inputs).square().mean()
    return inputs.shape[1] / 2 * missed.clamp_min(LEAST).log() + divergence(mean, log_variance).mean()


def trained(
    inputs: Tensor, sides: Sides, training: DecoderTraining, rng: torch.Generator, tick: Tick = unticked
) -> Parameters:
    """Train an autoencoder on inputs (n, d).

    Args:
        inputs: (n, d) in [0, 1].
        sides: Widths of the layers.
        training: Settings.
        rng: The generator of all draws.
        tick: Called after each epoch.

    Returns:
        The parameters {name: tensor}.
    """
    vae = Vae(sides).to_empty(device="cpu")
    initialise(vae, torch_default, rng)
    vae = vae.to(inputs)
    optimiser = torch.optim.Adam(vae.parameters(), lr=training.learning_rate)
    steps = training.epochs * math.ceil(len(inputs) / training.batch)
    falling = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
    for _ in range(training.epochs):
        for some in torch.split(torch.randperm(len(inputs), generator=rng), training.batch):
            noise = torch.randn(len(some), sides.latent, generator=rng).to(inputs)
            with torch.enable_grad():
                value = loss(vae, inputs[some.to(inputs.device)], noise)
                optimiser.zero_grad()
                torch.autograd.backward(value)
            optimiser.step()
            falling.step()
        tick()
    return dict(vae.state_dict())
