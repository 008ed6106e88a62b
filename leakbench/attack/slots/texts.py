"""Slots `space`, `start` and `priors`, for texts: sentences are searched as embeddings of their tokens."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from leakbench.attack.embeddings import fitted_lengths
from leakbench.attack.needs import TEXT, Needs
from leakbench.attack.search.coordinates import Coordinates
from leakbench.attack.text import WordEmbeddings
from leakbench.core.part import NonNegative, Positive, part
from leakbench.core.types import Generators
from leakbench.federated.view import View

__all__ = ["EmbeddingLength", "Embeddings", "NormalEmbeddings"]


@part("space.embeddings")
class Embeddings:
    """Search one embedding for each token, in units of the root mean square of all word embeddings.

    The embeddings enter the network like word embeddings. The reconstruction consists of the tokens with the nearest word
    embeddings. A place with an embedding of zeros holds no token, and a search does not move it. A guess does not reach the word
    embeddings themselves, so their gradient is not compared. They have no next token, so that the network must answer with classes.
    """

    needs: ClassVar[Needs] = Needs(kinds=(TEXT,), classes=True)

    nearest: Annotated[
        Literal["cosine", "l2"], Field(description="Distance by which the nearest word embedding is chosen.")
    ] = "cosine"

    def __call__(self, view: View) -> Coordinates:
        """Return the coordinates; raises InputError if the inputs are not texts."""
        words = WordEmbeddings.of(view, "space: embeddings")
        unit, shape = words.deviation, (view.shape[0], words.width)

        def same(x: Tensor) -> Tensor:
            return x

        return Coordinates(
            decode=lambda z: unit * z.reshape(*z.shape[:2], *shape),
            encode=lambda x: x.flatten(2) / unit,
            energy=lambda z, _: z.new_zeros(len(z)),
            answer=lambda x: words.nearest(x, self.nearest),
            inside=same,
            unreached=frozenset({words.name}),
        )


@part("start.normal_embeddings")
class NormalEmbeddings:
    """Draw every embedding from N(0, s^2), with the root mean square s of all word embeddings.

    Places after the end of a sentence hold no token. The gradient of the position embeddings shows the length of one sentence; for
    several, and behind noise, see `fitted_lengths`.
    """

    behaviour = 2

    needs: ClassVar[Needs] = Needs(kinds=(TEXT,))

    scale: Annotated[Positive, Field(description="Factor of the standard deviation.")] = 1.0

    def __call__(self, view: View, rngs: Generators) -> Tensor:
        """Return the first guess (V, M, T, width); raises InputError if the inputs are not texts."""
        words = WordEmbeddings.of(view, "start: normal_embeddings")
        shape = (view.examples, view.shape[0], words.width)
        drawn = torch.stack([torch.randn(shape, generator=rng) for rng in rngs]).to(words.weight)
        places = torch.arange(view.shape[0], device=drawn.device)
        there = places < fitted_lengths(view, rngs)[..., None]
        return self.scale * words.deviation * drawn * there[..., None]


@part("priors.embedding_length")
class EmbeddingLength:
    """Add weight * (n / m - 1)^2 with the mean length n of a guess's embeddings and m of all word embeddings (LAMP)."""

    needs: ClassVar[Needs] = Needs(kinds=(TEXT,))

    weight: Annotated[NonNegative, Field(description="Factor of the penalty.")]

    def __call__(self, inputs: Tensor, view: View, victims: Tensor) -> Tensor:
        """Return penalties (v,) of embeddings (v, M, T, width); places without a token do not count."""
        words = WordEmbeddings.of(view, "priors: embedding_length")
        others = torch.arange(words.weight.shape[1], device=inputs.device) != words.padding
        usual = torch.linalg.vector_norm(words.weight[:, others], dim=2).mean(1)
        usual = usual[victims] if len(usual) > 1 else usual
        squares = inputs.square().sum(-1).flatten(1)
        there = squares > 0
        # The root has no derivative at zero, so that places without a token get another number, which is not added.
        norms = squares.masked_fill(~there, 1.0).sqrt() * there
        mean = norms.sum(1) / there.sum(1).clamp_min(1)
        penalty: Tensor = self.weight * (mean / usual - 1).square()
        return penalty
