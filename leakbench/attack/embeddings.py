"""What the gradients of the embeddings of tokens and of positions say about a batch of sentences.

Each token adds the gradient of its input to the row of its token and to the row of its position. Rows of tokens that no sentence
has are zero (Melis et al., IEEE S&P 2019). Both embeddings get the same gradients, sorted in two ways: if a position has only
tokens that occur nowhere else, its row is the sum of theirs.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from leakbench.federated.view import View
from leakbench.models.language import LanguageModel

__all__ = ["Embedded", "embedded", "word_embedding"]

POSITIONS = ("wpe", "position_embeddings")
"""Last names of the embeddings of positions."""


@dataclass(frozen=True)
class Embedded:
    """The evidence of one victim's embeddings.

    Args:
        tokens: Numbers (n,) of the tokens with a gradient, by the length of their rows, longest first; without padding.
        lengths: (n,), the length of each row.
        places: (n, T), how much of each token's gradient is in each position's, by least squares: 1 for a token that occurs only
            there, 0 elsewhere. None if the positions have no trained embedding, or no fewer dimensions than tokens.
        reach: Number of positions with a gradient, which is the length of the longest sentence; None without positions.
    """

    tokens: Tensor
    lengths: Tensor
    places: Tensor | None
    reach: int | None


def word_embedding(model: LanguageModel) -> str:
    """Return the name of the word embeddings."""
    names = {id(module): name for name, module in model.named_modules()}
    return f"{names[id(model.transformer.get_input_embeddings())]}.weight"  # type: ignore[operator]


def embedded(view: View, model: LanguageModel) -> Embedded | None:
    """Return the evidence of the one victim of a view; None if the embedding of tokens is not trained or has no finite gradient.

    Args:
        view: A view of one victim.
        model: Its network.
    """
    word = word_embedding(model)
    if word not in view.update or not view.update[word].isfinite().all():
        return None
    gradient = view.update[word][0].double()
    # Noise would be as strong in a row that no sentence has. The strongest of n such rows has this length, with a margin.
    rows, width = gradient.shape
    floor = (
        0.0 if view.noise is None else view.noise * (width**0.5 + (2 * torch.tensor(float(rows)).log().item()) ** 0.5)
    )
    lengths = gradient.norm(dim=1)
    lengths[model.padding] = 0.0
    tokens = lengths.argsort(descending=True, stable=True)
    tokens = tokens[lengths[tokens] > floor]
    shares, reach = None, None
    for name, module in model.named_modules():
        if (
            name.rpartition(".")[2] in POSITIONS
            and f"{name}.weight" in view.update
            and isinstance(module, nn.Embedding)
        ):
            # Some networks begin to count after the number of their padding token.
            first = 0 if module.padding_idx is None else module.padding_idx + 1
            placed = view.update[f"{name}.weight"][0, first : first + view.shape[0]].double()
            there = placed.norm(dim=1) > floor
            reach = int(there.long().cumprod(0).sum())
            if 0 < len(tokens) < width:
                shares = _shares(gradient[tokens], placed)
    return Embedded(tokens, lengths[tokens], shares, reach)


def _shares(words: Tensor, placed: Tensor) -> Tensor:
    """Return (n, T): the coefficients of rows (n, d) that give rows (T, d) best."""
    lengths = words.norm(dim=1, keepdim=True)
    solved: Tensor = torch.linalg.pinv((words / lengths).T, rtol=1e-10) @ placed.T
    shares: Tensor = solved / lengths
    return shares
