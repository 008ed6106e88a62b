"""Slot `space`: the latent space of an autoencoder trained on public examples."""

from __future__ import annotations

import math
from typing import Annotated

from pydantic import Field
from torch import Tensor

from leakbench.attack.learn.origin import learned, origin_of
from leakbench.attack.learn.vae import DecoderTraining, Sides, Vae, trained
from leakbench.attack.needs import PLAIN, Needs
from leakbench.attack.public import public_of
from leakbench.attack.search.coordinates import Coordinates
from leakbench.core.part import Count, NonNegative, Positive, part
from leakbench.core.rng import generator
from leakbench.federated.view import Public, View

__all__ = ["Decoder"]


@part("space.decoder")
class Decoder:
    """Search z of x = decode(z), with the prior N(0, I) as energy weight * |z|^2 / 2. It finds only outputs of the decoder.

    A variational autoencoder (see `leakbench.attack.learn.vae`) is trained on public examples, images or tables, once for all views
    with the same examples. It uses neither the attacked network nor the defense. With few examples, use more epochs of smaller
    batches: with 450 digits, 40 epochs leave an RMSE of .17, and 200 epochs in batches of 50 leave .13.
    """

    latent: Annotated[Count, Field(description="Number of latent dimensions.")] = 32
    hidden: Annotated[Count, Field(description="Width of the hidden layers.")] = 512
    epochs: Annotated[Count, Field(description="Number of passes over the public examples in training.")] = 40
    public: Annotated[Count, Field(description="Largest number of public examples.")] = 10_000
    batch: Annotated[Count, Field(description="Number of examples in a batch of training.")] = 128
    learning_rate: Annotated[Positive, Field(description="Learning rate of training.")] = 1e-3
    weight: Annotated[NonNegative, Field(description="Factor of the energy.")] = 1.0
    seed: Annotated[int, Field(ge=0, description="Seed of all random draws.")] = 0

    @property
    def needs(self) -> Needs:
        """Public examples."""
        return Needs(public=self.public, kinds=PLAIN)

    def __call__(self, view: View) -> Coordinates:
        """Return the decoder and the energy; raises InputError if the view has no public examples.

        `encode` is the mean of the encoder. Its decoding is near the input but not equal to it.
        """
        public, like = public_of(view, "decoder", self.public), view.like
        sides = Sides(math.prod(view.shape), self.hidden, self.latent)
        training = DecoderTraining(self.epochs, self.batch, self.learning_rate)
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
