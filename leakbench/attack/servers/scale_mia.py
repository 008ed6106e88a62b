"""An imprint of latents: the network's own layers become an encoder and bins, and the server keeps the decoder.

The encoder is the network's convolutions, with weights of an autoencoder that the server trained on public examples. The first
linear layer has k equal rows, which compare the mean of the latent with k cutoffs. The layers after it pass on the sum of the
activations with alternating signs, as in `imprint`. The logits have the same size, and their sign alternates from class to class.
So every example has the same derivative, up to its sign, at every row below its bin. The differences of neighbouring rows then
contain the latents of each bin.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from leakbench.attack.learn.autoencoder import AutoencoderTraining
from leakbench.attack.needs import IMAGE, Needs
from leakbench.attack.servers.head import Head, Latents, head_of, latents_of
from leakbench.attack.servers.imprint import Bins, edges_of
from leakbench.core.errors import InputError
from leakbench.core.fitted import Fits, fitted_anew
from leakbench.core.part import Count, Positive, part
from leakbench.core.types import Network, Parameters
from leakbench.federated.view import Knowledge, Public

__all__ = ["LatentBins", "ScaleMia", "latent_imprint"]

SLOPE = 0.5
"""Logits per range of the latents' means; with larger ones, the examples of likely classes would have small gradients."""


@dataclass(frozen=True)
class LatentBins:
    """The bins of latents, and the decoder of their contents.

    Args:
        bins: The bins.
        latents: The decoder and the public latents.
    """

    bins: Bins
    latents: Latents


@part("server.scale_mia")
class ScaleMia:
    """Make the network an encoder and an imprint of latents (Shi et al., Scale-MIA, NDSS 2025, arXiv:2311.05808).

    The number of bins is the width of the first linear layer. Only values change, and the architecture stays. The autoencoder is
    trained once and stored. The published server has equal positive weights after the bins; here their signs alternate, so that
    the logits stay small and more of a gradient is in the bins.
    """

    threat: ClassVar[str] = "malicious parameters"

    gain: Annotated[
        Positive,
        Field(
            description=(
                "Size of the activations after the bins; at 1, the gradients of the last two layers are about equally long, and "
                "a larger or smaller one makes one of them longer."
            )
        ),
    ] = 1.0
    steps: Annotated[Count, Field(description="Number of steps of the autoencoder's training.")] = 1500
    batch: Annotated[Count, Field(description="Number of examples in a step.")] = 32
    learning_rate: Annotated[Positive, Field(description="First learning rate of the training.")] = 0.003
    public: Annotated[
        Count,
        Field(description="Largest number of public examples, for the training and the quantiles of the cutoffs."),
    ] = 10_000

    @property
    def needs(self) -> Needs:
        """Public images."""
        return Needs(public=self.public, kinds=(IMAGE,))

    def __call__(
        self, network: Network, public: Public, knowledge: Knowledge, rng: torch.Generator
    ) -> tuple[Network, LatentBins]:
        """Return the network with its trained encoder and its bins, and what the server keeps.

        Raises:
            InputError: If the network has no convolutions before two linear layers with biases (`head_of`), and with fewer than
                two public examples.
        """
        return self.learn(network, public, knowledge, rng, fitted_anew)

    def learn(
        self, network: Network, public: Public, knowledge: Knowledge, rng: torch.Generator, fits: Fits
    ) -> tuple[Network, LatentBins]:
        """Return the same, with the autoencoder from a source of fits."""
        head = head_of("scale_mia", network)
        if not head.prefix:
            raise InputError(
                "scale_mia: it trains the convolutions before the first linear layer, and this network has none; choose"
                " cnn_fc_1024, or the attack imprint"
            )
        training = AutoencoderTraining(self.steps, self.batch, self.learning_rate)
        known = public.first(self.public)
        network, latents, values = latents_of("scale_mia", network, head, known, training, rng, fits)
        sent, bins = latent_imprint(network, head, values, self.gain)
        return sent, LatentBins(bins, latents)


def latent_imprint(network: Network, head: Head, known: Tensor, gain: float) -> tuple[Network, Bins]:
    """Return the network with bins of the latents in its first linear layer.

    Args:
        network: The network.
        head: Its linear layers.
        known: Latents (P, d) of public examples.
        gain: See the field.

    Raises:
        InputError: If public latents are so alike that a bin has no width.
    """
    inputs, bins = head.widths[:2]
    functional = known.new_full((inputs,), 1 / inputs)
    edges = edges_of(known @ functional, bins)
    span = edges[-2] - edges[1]
    if not (edges[1:] > edges[:-1]).all() or not span > 0:
        raise InputError(
            "scale_mia: public latents are so alike that some bins have no width; use more public examples"
        )
    signs = edges.new_tensor([1.0, -1.0]).repeat(bins // 2 + 1)[:bins]
    sent = dict(network.parameters)
    first = head.layers[0]
    sent[f"{first}.weight"] = (functional / span).expand(bins, -1).clone()
    sent[f"{first}.bias"] = -edges[:-1] / span
    level = float((((known @ functional)[:, None] - edges[:-1]).relu() @ signs).mean() / span)
    # The gradients of the last two layers are about as long as `size` and as sqrt(bins) / (width size).
    size = gain / 2 * (bins**0.5 / head.widths[2]) ** 0.5
    sent |= _readout(sent, head, signs, size, level)
    return dataclasses.replace(network, parameters=sent), Bins(first, functional, edges[:-1], edges[1:], signs, True)


def _readout(sent: Parameters, head: Head, signs: Tensor, size: float, level: float) -> Parameters:
    """Return the layers after the bins.

    The sum of the bins' activations with alternating signs is not negative, so that a positive bias keeps every later ReLU
    active. The logits of an example with the usual sum, `level`, are zero.

    Args:
        sent: The parameters, for their shapes.
        head: The linear layers.
        signs: Signs (k,) of the bins.
        size: Size of the activations between the bins and the logits.
        level: Mean over public latents of the sum of activations with their signs.
    """
    later: Parameters = {}
    carry, factor = signs, SLOPE
    for place, name in enumerate(head.layers[1:-1]):
        weight = sent[f"{name}.weight"]
        later[f"{name}.weight"] = (size * carry if place == 0 else carry).expand(weight.shape).clone()
        later[f"{name}.bias"] = torch.full_like(weight[:, 0], 0.0 if place else size)
        carry, factor = weight.new_full((len(weight),), 1 / len(weight)), SLOPE / size
        level += 0.0 if place else 1.0
    weight = sent[f"{head.layers[-1]}.weight"]
    levels = weight.new_tensor([1.0, -1.0]).repeat(len(weight) // 2 + 1)[: len(weight)]
    later[f"{head.layers[-1]}.weight"] = factor * levels[:, None] * carry
    later[f"{head.layers[-1]}.bias"] = -SLOPE * level * levels
    return later
