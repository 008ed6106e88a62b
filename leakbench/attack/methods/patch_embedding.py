"""A closed form of vision transformers: the gradient of the positions is the derivative by each token, which gives the patches."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn

from leakbench.attack.doubts import RANK
from leakbench.attack.features import labels_of
from leakbench.attack.looks import averaged
from leakbench.attack.needs import IMAGE, Needs
from leakbench.attack.one_step import answered_at_once, likeliest
from leakbench.core.answers import Reconstruction
from leakbench.core.errors import InputError
from leakbench.core.part import Positive, part
from leakbench.core.types import Generators
from leakbench.federated.view import View
from leakbench.models.vision_transformer import Patches

__all__ = ["Embedding", "PatchEmbedding", "Rank", "embedding_of", "unmixed"]

Rank = Annotated[
    Positive,
    Field(
        description="Smallest singular value of D, as a share of the largest one, of a direction that is determined."
    ),
]


@part("method.patch_embedding")
class PatchEmbedding:
    """Solve dL/dW = D^T X for the patches X of one example, with D = dL/dE, the gradient of the positions (leakbench).

    Each token is W x_t + b + E_t for a patch x_t and a learned position E_t, so that D_t = dL/dE_t is the derivative by token t,
    and dL/dW is the sum of D_t x_t^T. If the rows of D are independent, the equations determine all patches: then there are at
    most as many patches as a token has numbers. Unlike APRIL (`april`), it reads nothing behind the embedding, so that norms and
    shortcuts do not matter. A clip of the whole update scales both gradients alike and changes nothing.
    """

    needs: ClassVar[Needs] = Needs(alone=True, kinds=(IMAGE,))

    rank: Rank = 1e-6

    def applies(self, view: View) -> bool:
        """Return whether the network begins with an embedding of patches whose gradients show one example."""
        return view.examples == 1 and view.of_gradients and embedding_of(view) is not None

    def __call__(self, views: tuple[View, ...], rngs: Generators) -> Reconstruction:
        """Reconstruct V victims from the mean of the observations of a release, clamped to [0, 1].

        The certainty is minus the squared distance of the gradients. If the rows of D are dependent, the result is the shortest
        solution, and has the doubt `rank`.

        Returns:
            NaN if the update is not finite, and for a D of zeros.

        Raises:
            InputError: For another network, and for an update of several examples, which shows only the sum of their D.
        """
        return likeliest([self._answer(view, rngs) for view, _ in averaged(views)])

    def _answer(self, view: View, rngs: Generators) -> Reconstruction:
        embedding = of_one_example("patch_embedding", view)
        delta = view.update[embedding.positions].double()[:, 0, embedding.before :]
        gradient = view.update[embedding.weight].double().flatten(2)
        patches, lacking = unmixed(delta, gradient, self.rank)
        return embedding.reconstruction(view, patches, lacking, rngs)


@dataclass(frozen=True)
class Embedding:
    """An embedding of patches at the begin of a network.

    Args:
        weight: Name of the weight (width, C, k, k) of the convolution.
        bias: Name of its bias.
        positions: Name of the positions (1, tokens, width).
        before: Number of tokens before those of the patches.
    """

    weight: str
    bias: str
    positions: str
    before: int = 1

    def reconstruction(self, view: View, patches: Tensor, lacking: Tensor, rngs: Generators) -> Reconstruction:
        """Return patches (V, T, C * k * k) as pictures, with the doubt `rank` for the victims in `lacking` (V,)."""
        size = view.network.parameters[self.weight].shape[-1]
        pictures = nn.functional.fold(patches.mT, view.shape[1:], size, stride=size).clamp(0, 1).to(view.like)
        answer = answered_at_once((view,), pictures[:, None], rngs, labels=labels_of(view, rngs))
        return dataclasses.replace(answer, doubts={RANK: lacking})


def embedding_of(view: View) -> Embedding | None:
    """Return the embedding of patches with which a network begins; None for another network, and if it is not trained."""
    model = view.network.model
    first = next(iter(model.named_children()), None) if type(model) is nn.Sequential else None
    if first is None or type(first[1]) is not Patches or model._forward_pre_hooks or first[1]._forward_pre_hooks:
        return None
    names = Embedding(f"{first[0]}.embed.weight", f"{first[0]}.embed.bias", f"{first[0]}.positions")
    trained = all(name in view.network.parameters for name in (names.weight, names.positions))
    return names if trained else None


def of_one_example(method: str, view: View) -> Embedding:
    """Return the embedding of a view of one example; raises InputError for another view, with the name of the method."""
    embedding = embedding_of(view)
    if embedding is None:
        raise InputError(
            f"attack: {method} reads a trained embedding of patches with learned positions, with which this network does not begin;"
            " use --leak-model vit_tiny, or choose another attack"
        )
    if view.examples != 1 or not view.of_gradients:
        raise InputError(
            f"attack: {method} reads the gradient of one example, got an update of {view.examples}; use {view.alone_by}"
        )
    return embedding


def unmixed(delta: Tensor, gradient: Tensor, rank: float) -> tuple[Tensor, Tensor]:
    """Solve gradient = delta^T X for X by least squares.

    Args:
        delta: (V, T, d).
        gradient: (V, d, p).
        rank: Smallest singular value of delta, as a share of the largest one, of a direction that is determined.

    Returns:
        The shortest solution (V, T, p), NaN for numbers that are not finite or a delta of zeros; and (V,) bool, whether delta
        has a rank below T.
    """
    sound = delta.flatten(1).isfinite().all(1) & gradient.flatten(1).isfinite().all(1) & delta.flatten(1).any(1)
    left, sizes, right = torch.linalg.svd(delta.where(sound[:, None, None], 1.0), full_matrices=False)
    inside = sizes > rank * sizes[:, :1]
    inverse = torch.where(inside, 1 / sizes, 0.0)
    x = left @ (inverse[..., None] * (right @ gradient))
    return x.where(sound[:, None, None], torch.nan), sound & (inside.sum(1) < delta.shape[1])
