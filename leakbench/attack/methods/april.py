"""APRIL: a closed form of an attention layer whose inputs are tokens with learned positions."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from leakbench.attack.looks import averaged
from leakbench.attack.methods.patch_embedding import Rank, embedding_of, of_one_example, unmixed
from leakbench.attack.needs import IMAGE, Needs
from leakbench.attack.one_step import likeliest
from leakbench.core.answers import Reconstruction
from leakbench.core.errors import InputError
from leakbench.core.part import part
from leakbench.core.types import Generators
from leakbench.federated.view import View
from leakbench.models.vision_transformer import PlainBlock

__all__ = ["April"]


@part("method.april")
class April:
    """Solve D^T Z = W_q^T dL/dW_q + W_k^T dL/dW_k + W_v^T dL/dW_v for the tokens Z (APRIL: Lu et al., CVPR 2022, theorem 1).

    D = dL/dE is the gradient of the positions E. It equals dL/dZ only if the tokens enter the attention without a norm or a
    shortcut around it, as in the paper's network (`vit_tiny_april`). The patches then follow from Z - E by least squares through
    the weight of the embedding. For other vision transformers, see `patch_embedding`.
    """

    needs: ClassVar[Needs] = Needs(alone=True, kinds=(IMAGE,))

    rank: Rank = 1e-6

    def __call__(self, views: tuple[View, ...], rngs: Generators) -> Reconstruction:
        """Reconstruct V victims from the mean of the observations of a release, clamped to [0, 1].

        The certainty is minus the squared distance of the gradients. If the rows of D are dependent, Z is the shortest solution,
        and the reconstruction has the doubt `rank`.

        Returns:
            NaN if the update is not finite, and for a D of zeros.

        Raises:
            InputError: For a network whose first attention does not read the tokens themselves, and for several examples.
        """
        return likeliest([self._answer(view, rngs) for view, _ in averaged(views)])

    def _answer(self, view: View, rngs: Generators) -> Reconstruction:
        block = _plain_block(view)
        if block is None:
            raise InputError(
                "attack: april reads an attention whose inputs are the tokens themselves; the first block of this network has a"
                " norm or a shortcut, or is missing; use --leak-model vit_tiny_april, or --attack patch_embedding"
            )
        embedding = of_one_example("april", view)
        sent, name = view.network.parameters, f"{block}.attention.qkv.weight"
        # The three projections are the rows of one matrix, so that its product is the sum of theirs.
        products = sent[name].double().mT @ view.update[name].double()
        tokens, lacking = unmixed(view.update[embedding.positions][:, 0].double(), products, self.rank)
        weight = sent[embedding.weight].double().flatten(-3)
        positions = sent[embedding.positions].double()[..., 0, embedding.before :, :]
        embedded = tokens[:, embedding.before :] - positions
        if embedding.bias in sent:
            embedded = embedded - sent[embedding.bias].double()[..., None, :]
        patches = embedded @ torch.linalg.pinv(weight).mT
        return embedding.reconstruction(view, patches, lacking | _narrow(weight).expand_as(lacking), rngs)


def _plain_block(view: View) -> str | None:
    """Return the name of the block behind the embedding if its attention reads the tokens themselves; otherwise None."""
    if embedding_of(view) is None:
        return None
    name, block = list(view.network.model.named_children())[1]
    plain = type(block) is PlainBlock and f"{name}.attention.qkv.weight" in view.network.parameters
    return name if plain else None


def _narrow(weight: Tensor) -> Tensor:
    """Return whether a weight (..., width, p) of an embedding does not determine its p inputs."""
    narrow: Tensor = torch.linalg.matrix_rank(weight) < weight.shape[-1]
    return narrow
