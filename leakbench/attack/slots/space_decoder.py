"""Slot `space`: the latent of a network that learned from public examples what inputs look like."""

from __future__ import annotations

import math
from typing import Annotated

from pydantic import Field
from torch import Tensor

from leakbench.attack.learn.origin import learned, origin_of
from leakbench.attack.learn.vae import Sides, Training, Vae, trained
from leakbench.attack.needs import Needs
from leakbench.attack.public import public_of
from leakbench.attack.search.coordinates import Coordinates
from leakbench.federated.view import Public, View
from leakbench.part import Count, NonNegative, Positive, part
from leakbench.rng import generator

__all__ = ["Decoder"]


@part("space.decoder")
class Decoder:
    """Search z of x = decode(z), with the prior N(0, I) as energy weight * |z|^2 / 2; only inputs that the decoder draws are found.

    A variational autoencoder (see `leakbench.attack.learn.vae`) is trained on at most `public` public examples, images or tables,
    once for all views with the same ones: it uses neither the network that leaks nor the defense.
    """

    latent: Annotated[Count, Field(description="Width of the latent space and of the hidden layers.")] = 32
    hidden: Annotated[Count, Field(description="Width of the latent space and of the hidden layers.")] = 512
    epochs: Annotated[
        Count,
        Field(
            description=(
                "Settings of the training. With few examples, use more epochs of smaller batches (with 450 digits, 40 epochs "
                "leave an RMSE of .17, and 200 epochs in batches of 50 leave .13)."
            )
        ),
    ] = 40
    public: Count = 10_000
    batch: Annotated[
        Count,
        Field(
            description=(
                "Settings of the training. With few examples, use more epochs of smaller batches (with 450 digits, 40 epochs "
                "leave an RMSE of .17, and 200 epochs in batches of 50 leave .13)."
            )
        ),
    ] = 128
    learning_rate: Annotated[
        Positive,
        Field(
            description=(
                "Settings of the training. With few examples, use more epochs of smaller batches (with 450 digits, 40 epochs "
                "leave an RMSE of .17, and 200 epochs in batches of 50 leave .13)."
            )
        ),
    ] = 1e-3
    weight: NonNegative = 1.0
    seed: Annotated[int, Field(ge=0, description="Seed of all random draws.")] = 0

    @property
    def needs(self) -> Needs:
        """Public examples."""
        return Needs(public=self.public)

    def __call__(self, view: View) -> Coordinates:
        """Return the decoder and the energy; `encode` is the encoder's mean, whose decoding is near the input and not it.

        Raises InputError where there is no public example.
        """
        public, like = public_of(view, "decoder", self.public), next(iter(view.update.values()))
        sides = Sides(math.prod(view.shape), self.hidden, self.latent)
        training = Training(self.epochs, self.batch, self.learning_rate)
        fields = {"sides": vars(sides), "training": vars(training), "seed": self.seed}
        origin = origin_of("decoder", __name__, fields, public)
        rng = generator(self.seed, "decoder")
        tensors, _ = learned(view, origin, public, lambda: trained(_flat(public), sides, training, rng, view.tick))
        vae = Vae.of(sides, tensors, like)

        def decode(z: Tensor) -> Tensor:
            return vae.decode(z).reshape(*z.shape[:2], *view.shape)

        def encode(x: Tensor) -> Tensor:
            return vae.encode(x.flatten(2))[0]

        return Coordinates(decode, encode, lambda z, _: self.weight / 2 * z.flatten(1).square().sum(1))


def _flat(public: Public) -> Tensor:
    return public.inputs.flatten(1).float()
