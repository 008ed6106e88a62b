"""What the gradients of the embeddings of tokens and of positions say about a batch of sentences.

Each token adds the gradient of its input to the row of its token and to the row of its position. Rows of tokens that no sentence
has are zero (Melis et al., IEEE S&P 2019). Both embeddings get the same gradients, sorted in two ways: if a position has only
tokens that occur nowhere else, its row is the sum of theirs.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from leakbench.federated.view import View
from leakbench.models.language import LanguageModel

__all__ = ["Embedded", "embedded"]


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


def embedded(view: View, model: LanguageModel) -> Embedded | None:
    """Return the evidence of the one victim of a view; None if the embedding of tokens is not trained or has no finite gradient.

    Args:
        view: A view of one victim.
        model: Its network.
    """
    word = model.word_weights
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
    if model.position_weights is not None and model.position_weights[0] in view.update:
        name, first = model.position_weights
        placed = view.update[name][0, first : first + view.shape[0]].double()
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
