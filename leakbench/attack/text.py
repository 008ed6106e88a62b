"""What an attacker of texts knows apart from the gradient of its guess: embeddings, lengths, and a model of public sentences."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from leakbench.attack.public import public_of
from leakbench.core.errors import InputError
from leakbench.core.types import Generators
from leakbench.federated.view import View
from leakbench.models.language import LanguageModel

__all__ = ["Bigrams", "WordEmbeddings", "fitted_lengths", "language_model_of", "lengths"]


@dataclass(frozen=True)
class WordEmbeddings:
    """The embeddings of all tokens in the network that was sent.

    Args:
        name: Name of the parameter.
        weight: (1, tokens, width) if the victims share a network, else (V, tokens, width).
        padding: Number of the token that fills up a sentence.
    """

    name: str
    weight: Tensor
    padding: int

    @classmethod
    def of(cls, view: View, who: str) -> WordEmbeddings:
        """Return the word embeddings of a view; raises InputError, which names the part `who`, without a language model."""
        model = language_model_of(view, who)[1]
        layer: nn.Embedding = model.transformer.get_input_embeddings()  # type: ignore[operator]
        name = next(n for n, module in view.network.model.named_modules() if module is layer) + ".weight"
        like = next(iter(view.update.values()))
        weight = view.network.parameters.get(name, layer.weight).detach().to(like)
        return cls(name, weight if weight.dim() == 3 else weight[None], model.padding)

    @property
    def width(self) -> int:
        """Number of coordinates of an embedding."""
        return self.weight.shape[2]

    @property
    def deviation(self) -> float:
        """Root of the mean square of all coordinates, padding left out."""
        others = torch.arange(self.weight.shape[1], device=self.weight.device) != self.padding
        return float(self.weight[:, others].square().mean().sqrt())

    def nearest(self, embeddings: Tensor, by: str = "cosine") -> Tensor:
        """Return the tokens (V, M, T) nearest to embeddings (V, M, T, width), as numbers of the embeddings' type.

        An embedding of zeros is no token and becomes padding, which no other embedding becomes.

        Args:
            embeddings: The embeddings.
            by: `cosine`, or `l2` for the Euclidean distance.
        """
        flat = embeddings.flatten(1, 2)  # (V, M * T, width)
        weight = self.weight.expand(len(flat), -1, -1)
        if by == "cosine":
            weight = nn.functional.normalize(weight, dim=2)
            near = flat @ weight.mT  # The length of the other vector does not change the order.
        else:
            near = -torch.cdist(flat, weight)
        near[..., self.padding] = -torch.inf
        tokens = near.argmax(2).reshape(embeddings.shape[:-1]).to(embeddings)
        return tokens.masked_fill((embeddings == 0).all(-1), float(self.padding))


def language_model_of(view: View, who: str) -> tuple[str, LanguageModel]:
    """Return (prefix of its parameters, the language model) of a view; a defense may wrap it.

    Raises:
        InputError: If the network is not a language model; the message names the part `who`.
    """
    for name, module in view.network.model.named_modules():
        if isinstance(module, LanguageModel):
            return f"{name}." if name else "", module
    raise InputError(f"{who}: needs texts, got inputs of shape {view.shape} (try --dataset reviews, or another part)")


def lengths(view: View) -> Tensor:
    """Return the numbers of tokens (V, M) int64 that the gradient of the position embeddings shows.

    The gradient of a position is zero if no sentence of the update has a token there. So the length of the longest sentence is
    exact without a defense, and it is returned for all M sentences of an update. With noise, all positions have a gradient, and
    the length is T; likewise for a network without position embeddings, or if they are not trained.

    Args:
        view: The view of V victims.

    Raises:
        InputError: If the network is not a language model.
    """
    prefix, model = language_model_of(view, "lengths")
    full = torch.full((view.victims, view.examples), view.shape[0], device=next(iter(view.update.values())).device)
    name = _positions(model)
    if name is None or prefix + name not in view.update:
        return full
    used = (view.update[prefix + name] != 0).any(-1).sum(1)
    return torch.where((used > 0) & (used <= view.shape[0]), used, view.shape[0])[:, None].expand_as(full)


SWEEPS = 2
"""Number of times that the length of each sentence of a batch is chosen again, given the others."""


def fitted_lengths(view: View, targets: Tensor, rngs: Generators) -> Tensor:
    """Return the numbers of tokens (V, M) int64 of the sentences of each update, estimated if M > 1.

    Starting from `lengths`, the length of one sentence at a time is chosen so that the position gradients of random tokens of
    public sentences are most like the observed ones. At first weights, these gradients depend little on the tokens: at each
    position they are about the sum of the sentences that are there, each in the direction of its label. Differences at a position
    are relative to its gradients.

    Args:
        view: The view of V victims, with public sentences if M > 1.
        targets: Labels (V, M, classes) of the sentences.
        rngs: Victim v draws its tokens from rngs[v].

    Raises:
        InputError: If the network is not a language model, and without public sentences for M > 1.
    """
    found = lengths(view).clone()
    prefix, model = language_model_of(view, "lengths")
    name = _positions(model)
    if view.examples == 1 or name is None or prefix + name not in view.update:
        return found
    observed, longest = view.update[prefix + name], int(found.max())
    public = public_of(view, "lengths").inputs
    common = public[public != model.padding]
    drawn = [torch.randint(len(common), (view.examples, view.shape[0]), generator=rng) for rng in rngs]
    tokens = common[torch.stack(drawn).to(common.device)].to(observed)
    places = torch.arange(view.shape[0], device=tokens.device)

    def cost(tried: Tensor) -> Tensor:
        with torch.no_grad():
            guess = tokens.where(places < tried[..., None], float(model.padding))
            rows = view.respond(guess, targets)[prefix + name]
        sizes = rows.square().sum(-1) + observed.square().sum(-1)
        return ((rows - observed).square().sum(-1) / sizes.clamp_min(1e-30)).sum(1)

    for _ in range(SWEEPS):
        for number in range(view.examples):
            costs = []
            for length in range(1, longest + 1):
                tried = found.clone()
                tried[:, number] = length
                # No sentence is longer than the longest of its update.
                costs.append(cost(tried).masked_fill(length > lengths(view)[:, number], torch.inf))
            found[:, number] = torch.stack(costs).argmin(0) + 1
    return found


def _positions(model: LanguageModel) -> str | None:
    """Return the name of the position embeddings, the embeddings that are neither of words nor of kinds of sentences."""
    words = model.transformer.get_input_embeddings()  # type: ignore[operator]
    for name, module in model.named_modules():
        if isinstance(module, nn.Embedding) and module is not words and module.num_embeddings >= model.length:
            return f"{name}.weight"
    return None


@dataclass(frozen=True)
class Bigrams:
    """A language model of pairs of neighbouring tokens, learned from sentences.

        p(b | a) = share * n(a, b) / n(a) + (1 - share) * (n(b) + 1) / (n + tokens)

    n(a, b) counts the pairs, n(a) the pairs that begin with a, n(b) the pairs that end with b, and n all pairs. For a token a that
    begins no pair, p(b | a) is the last fraction.

    Args:
        pairs: a * tokens + b of all pairs that occur, ascending.
        counts: How often each of them occurs, float64.
        before: n(a) for every token.
        after: n(b) for every token.
        share: Weight of the pairs.
    """

    pairs: Tensor
    counts: Tensor
    before: Tensor
    after: Tensor
    share: float

    @classmethod
    def of(cls, sentences: Tensor, tokens: int, padding: int, share: float = 0.7) -> Bigrams:
        """Learn the model from sentences (n, T) that are filled up with padding."""
        first, second = sentences[:, :-1].long(), sentences[:, 1:].long()
        there = (first != padding) & (second != padding)
        first, second = first[there], second[there]
        pairs, counts = torch.unique(first * tokens + second, return_counts=True)
        before, after = (torch.bincount(part, minlength=tokens).double() for part in (first, second))
        return cls(pairs, counts.double(), before, after, share)

    def log_probabilities(self, first: Tensor, second: Tensor) -> Tensor:
        """Return log p(second | first), float64, of tokens of any common shape."""
        tokens = len(self.before)
        first, second = first.long(), second.long()
        smooth = (self.after[second] + 1) / (self.after.sum() + tokens)
        begins = self.before[first]
        if not len(self.pairs):
            return smooth.log()
        key = first * tokens + second
        where = torch.searchsorted(self.pairs, key).clamp_max(len(self.pairs) - 1)
        count = torch.where(self.pairs[where] == key, self.counts[where], 0.0)
        mixed = self.share * count / begins.clamp_min(1) + (1 - self.share) * smooth
        return torch.where(begins > 0, mixed, smooth).log()

    def surprise(self, sentences: Tensor, padding: int) -> Tensor:
        """Return the mean of -log p over the pairs of each sentence (..., T), the logarithm of its perplexity; 0 without pairs."""
        first, second = sentences[..., :-1], sentences[..., 1:]
        there = (first != padding) & (second != padding)
        each = -self.log_probabilities(first, second) * there
        return each.sum(-1) / there.sum(-1).clamp_min(1)
