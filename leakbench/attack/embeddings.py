"""What the gradients of the embeddings of tokens and of positions say about a batch of sentences.

Each token adds the gradient of its input to the row of its token and to the row of its position. Rows of tokens that no sentence
has are zero (Melis et al., IEEE S&P 2019). Both embeddings get the same gradients, sorted in two ways: if a position has only
tokens that occur nowhere else, its row is the sum of theirs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from leakbench.attack.public import public_of
from leakbench.attack.slots.labels import Given, LastLayerCounts
from leakbench.attack.text import language_model_of
from leakbench.core.types import Generators
from leakbench.federated.view import View
from leakbench.models.language import LanguageModel

__all__ = ["Embedded", "embedded", "fitted_lengths", "lengths", "noise_on_words"]


NORMAL_MEDIAN = 0.6745
"""Median of the absolute value of a standard normal number."""


def noise_on_words(view: View, words: str) -> Tensor:
    """Return the standard deviations (V,) float64 of the noise on each coordinate: the known one, or what the gradient shows.

    Most tokens are in no sentence of a batch, so that the median of the absolute values of all their rows is that of the noise.
    This does not hold for the loss of next tokens, where a head with the weights of the embeddings gives every row a gradient.

    Args:
        view: The view of V victims.
        words: Name of the word embeddings. Without their gradient, and for the loss of next tokens, no unknown noise is assumed.
    """
    device = view.like.device
    if view.noise is not None:
        return torch.full((view.victims,), view.noise, dtype=torch.float64, device=device)
    if words not in view.update or view.classes == 1:
        return torch.zeros(view.victims, dtype=torch.float64, device=device)
    return view.update[words].flatten(1).abs().median(1).values.double() / NORMAL_MEDIAN


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
    floor = 0.0 if view.noise is None else view.noise * (width**0.5 + (2 * math.log(rows)) ** 0.5)
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


def lengths(view: View) -> Tensor:
    """Return the largest numbers of tokens (V, M) int64 that the gradient of the position embeddings allows.

    The gradient of a position is zero if no sentence of the update has a token there. So the length of the longest sentence is
    exact without noise, and it is returned for all M sentences of an update. With noise, all positions have a gradient, and the
    length is T; likewise for a network without position embeddings, or if they are not trained.

    Args:
        view: The view of V victims.

    Raises:
        InputError: If the network is not a language model.
    """
    prefix, model = language_model_of(view, "lengths")
    full = torch.full((view.victims, view.examples), view.shape[0], device=view.like.device)
    if model.position_weights is None or prefix + model.position_weights[0] not in view.update:
        return full
    used = (view.update[prefix + model.position_weights[0]] != 0).any(-1).sum(1)
    return torch.where((used > 0) & (used <= view.shape[0]), used, view.shape[0])[:, None].expand_as(full)


SWEEPS = 2
"""Number of times that the length of each sentence of a batch is chosen again, given the others."""


def fitted_lengths(view: View, rngs: Generators) -> Tensor:
    """Return the numbers of tokens (V, M) int64 of the sentences of each update, estimated if M > 1 or behind noise.

    Starting from `lengths`, the length of one sentence at a time is chosen so that the position gradients of random tokens of
    public sentences are most like the observed ones. At first weights, these gradients depend little on the tokens: at each
    position they are about the sum of the sentences that are there, each in the direction of its label. Behind noise, the sum of
    squared differences decides; without it, differences at a position are relative to its gradients. The labels are counted by
    `last_layer_counts` unless they are given.

    The loss of next tokens depends on all tokens, so that random ones explain nothing: the places with more energy than noise are
    counted, and the last token, whose place has no gradient.

    Args:
        view: The view of V victims, with public sentences if a length is estimated.
        rngs: Victim v draws its tokens from rngs[v].

    Raises:
        InputError: If the network is not a language model, and without public sentences where a length is estimated.
    """
    most = lengths(view)  # No sentence is longer than the longest of its update.
    prefix, model = language_model_of(view, "lengths")
    name = "" if model.position_weights is None else prefix + model.position_weights[0]
    if name not in view.update:
        return most
    noise = noise_on_words(view, prefix + model.word_weights)
    noisy = noise > 0
    if view.classes == 1:
        return _before_last(view, name, noise, most)
    if view.examples == 1 and not bool(noisy.any()):
        return most
    guess = (LastLayerCounts() if view.labels is None else Given())(view, rngs)
    targets = torch.full_like(guess.targets, 1 / view.classes) if guess.joint else guess.targets
    found, observed = most.clone(), view.update[name]
    public = public_of(view, "lengths").inputs
    common = public[public != model.padding]
    drawn = [torch.randint(len(common), (view.examples, view.shape[0]), generator=rng) for rng in rngs]
    tokens = common[torch.stack(drawn).to(common.device)].to(observed)
    places = torch.arange(view.shape[0], device=tokens.device)

    def cost(tried: Tensor) -> Tensor:
        with torch.no_grad():
            guess = tokens.where(places < tried[..., None], float(model.padding))
            rows = view.respond(guess, targets)[name]
        sizes = (rows.square().sum(-1) + observed.square().sum(-1)).clamp_min(1e-30)
        return ((rows - observed).square().sum(-1) / torch.where(noisy[:, None], 1.0, sizes)).sum(1)

    for _ in range(1 if view.examples == 1 else SWEEPS):
        for number in range(view.examples):
            costs = []
            for length in range(1, int(most.max()) + 1):
                tried = found.clone()
                tried[:, number] = length
                costs.append(cost(tried).masked_fill(length > most[:, number], torch.inf))
            found[:, number] = torch.stack(costs).argmin(0) + 1
    return found


def _before_last(view: View, name: str, noise: Tensor, most: Tensor) -> Tensor:
    """Return the lengths (V, M) of sentences whose last place has no gradient: the likeliest number of places above noise, plus 1.

    Args:
        view: The view of V victims.
        name: Name of the position embeddings.
        noise: Standard deviations (V,).
        most: Lengths (V, M) without noise, one short.
    """
    placed = view.update[name].double()
    wide = placed.shape[2]
    excess = placed.square().sum(2) / noise[:, None].square() - wide - 2 * math.sqrt(2 * wide)
    found = torch.where(noise[:, None] > 0, excess.cumsum(1).argmax(1, keepdim=True) + 1, most)
    return (found + 1).clamp_max(view.shape[0])
