"""The fully connected layers at the end of a network, and the latents that enter them."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call

from leakbench.attack.learn.autoencoder import AutoencoderTraining, mirror_of, trained_autoencoder
from leakbench.attack.learn.origin import learned_by, origin_of
from leakbench.attack.servers.imprint import known_inputs
from leakbench.core.answers import Fit
from leakbench.core.errors import InputError
from leakbench.core.fitted import Fits
from leakbench.core.rng import generator
from leakbench.core.types import Network, Parameters
from leakbench.federated.view import Public
from leakbench.models import parameters

__all__ = ["Head", "Latents", "encoded", "head_of", "latents_of"]

CHUNK = 500
"""Number of inputs in a forward pass."""

PRIOR = 2000
"""Largest number of public latents for the prior of an attacker that knows the noise."""


@dataclass(frozen=True)
class Head:
    """The layers of a network: an encoder, then linear layers with ReLUs between them.

    Args:
        encoder: The layers before the first linear one; without parameters, latents are the inputs.
        prefix: Names {name of the encoder's parameter: its name in the network}.
        layers: Names of the linear layers, at least two, all with biases.
        widths: Numbers of the inputs of the linear layers, and of the outputs of the last one.
    """

    encoder: nn.Sequential
    prefix: dict[str, str]
    layers: tuple[str, ...]
    widths: tuple[int, ...]


@dataclass(frozen=True)
class Latents:
    """What a server learned from public examples about the latents, which are the inputs of the first linear layer.

    Args:
        decoder: Maps latents (n, d) to inputs (n, *s); None if latents are inputs.
        known: Latents (P, d) of public examples.
        fit: The training; None if nothing was learned.
    """

    decoder: nn.Module | None
    known: Tensor
    fit: Fit | None

    def decode(self, latents: Tensor, shape: tuple[int, ...]) -> Tensor:
        """Return inputs (V, M, *s) in [0, 1] for latents (V, M, d); NaN for a latent that is NaN."""
        flat = latents.flatten(0, 1)
        with torch.no_grad():
            decoded: Tensor = flat if self.decoder is None else self.decoder(flat)
        return decoded.reshape(*latents.shape[:2], *shape).clamp(0, 1)


def head_of(server: str, network: Network) -> Head:
    """Return the encoder and the linear layers of a network.

    Args:
        server: Name of the server, for the message.
        network: The network.

    Raises:
        InputError: If the network does not end with at least two linear layers with biases and ReLUs between them, after
            convolutions or after nothing.
    """
    children = list(network.model.named_children()) if isinstance(network.model, nn.Sequential) else []
    first = next((n for n, (_, module) in enumerate(children) if isinstance(module, nn.Linear)), len(children))
    before, after = children[:first], children[first:]
    linear = [(name, module) for name, module in after if isinstance(module, nn.Linear)]
    expected = len(linear) > 1 and len(after) == 2 * len(linear) - 1
    expected = expected and all(isinstance(module, nn.ReLU) for _, module in after[1::2])
    expected = expected and all(f"{name}.bias" in network.parameters for name, _ in linear)
    plain = (nn.Conv2d, nn.ReLU, nn.LeakyReLU, nn.Sigmoid, nn.GELU, nn.Flatten, nn.Identity)
    expected = expected and all(isinstance(module, plain) for _, module in before)
    if not expected:
        raise InputError(
            f"{server}: it needs a network that ends with at least two linear layers with biases and ReLUs between them, after"
            " convolutions or nothing; choose such a network (cnn_fc_1024, mlp_1000)"
        )
    encoder = nn.Sequential(*(module for _, module in before))
    prefix = {f"{n}.{own}": f"{name}.{own}" for n, (name, module) in enumerate(before) for own in parameters(module)}
    widths = (*(module.in_features for _, module in linear), linear[-1][1].out_features)
    return Head(encoder, prefix, tuple(name for name, _ in linear), widths)


def latents_of(
    server: str,
    network: Network,
    head: Head,
    public: Public,
    training: AutoencoderTraining,
    rng: torch.Generator,
    fits: Fits,
) -> tuple[Network, Latents, Tensor]:
    """Return the network with a trained encoder, what the server keeps, and the latents (P, d) of the public examples.

    The encoder and its mirror learn from the public examples alone, from first weights that do not depend on the network's, so
    that one training serves all networks. Without convolutions nothing is learned, and latents are inputs.

    Args:
        server: Name of the server, for messages.
        network: The network.
        head: Its layers.
        public: The public examples.
        training: Settings of the autoencoder.
        rng: The generator.
        fits: Source of fits.

    Raises:
        InputError: With fewer than two public examples, and if all of them are alike.
    """
    inputs = known_inputs(server, network, public, len(public.labels)).reshape(public.inputs.shape)
    if not head.prefix:
        latents = inputs.flatten(1)
        return network, Latents(None, latents[:PRIOR], None), latents
    fields = {
        "training": dataclasses.asdict(training),
        "encoder": repr(head.encoder),
        "type": str(inputs.dtype),
        "seed": rng.initial_seed(),
    }
    origin = origin_of("autoencoder", trained_autoencoder.__module__, fields, public)

    def make() -> Parameters:
        own = generator(rng.initial_seed(), "autoencoder")  # A stored fit draws nothing from `rng`.
        encoder, decoder = trained_autoencoder(head.encoder, inputs, training, own)
        return {**{f"encoder.{n}": p for n, p in encoder.items()}, **{f"decoder.{n}": p for n, p in decoder.items()}}

    tensors, fit = learned_by(fits, origin, public, make, inputs)
    sent = {name: tensors[f"encoder.{own}"] for own, name in head.prefix.items()}
    network = dataclasses.replace(network, parameters={**network.parameters, **sent})
    decoder = mirror_of(head.encoder, tuple(inputs.shape[1:])).to(inputs)
    decoder.load_state_dict({n.removeprefix("decoder."): t for n, t in tensors.items() if n.startswith("decoder.")})
    latents = encoded(network, head, inputs)
    return network, Latents(decoder, latents[:PRIOR], fit), latents


def encoded(network: Network, head: Head, inputs: Tensor) -> Tensor:
    """Return the latents (n, d) of inputs (n, *s)."""
    own = {own: network.parameters[name] for own, name in head.prefix.items()}
    with torch.no_grad():
        pieces = [functional_call(head.encoder, own, (some,)).flatten(1) for some in torch.split(inputs, CHUNK)]
    return torch.cat(pieces)
