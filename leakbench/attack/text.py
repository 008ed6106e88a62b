"""What an attacker of texts knows apart from the gradient of its guess: embeddings, lengths, and a model of public sentences."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from leakbench.attack.public import public_of
from leakbench.attack.slots.labels import Given, LastLayerCounts
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
        prefix, model = language_model_of(view, who)
        name = prefix + model.word_weights
        like = next(iter(view.update.values()))
        weight = view.network.parameters.get(name, model.words.weight).detach().to(like)
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
    if model.position_weights is None or prefix + model.position_weights[0] not in view.update:
        return full
    used = (view.update[prefix + model.position_weights[0]] != 0).any(-1).sum(1)
    return torch.where((used > 0) & (used <= view.shape[0]), used, view.shape[0])[:, None].expand_as(full)


SWEEPS = 2
"""Number of times that the length of each sentence of a batch is chosen again, given the others."""


def fitted_lengths(view: View, rngs: Generators) -> Tensor:
    """Return the numbers of tokens (V, M) int64 of the sentences of each update, estimated if M > 1.

    Starting from `lengths`, the length of one sentence at a time is chosen so that the position gradients of random tokens of
    public sentences are most like the observed ones. At first weights, these gradients depend little on the tokens: at each
    position they are about the sum of the sentences that are there, each in the direction of its label. Differences at a position
    are relative to its gradients. The labels are counted by `last_layer_counts` unless they are given.

    Args:
        view: The view of V victims, with public sentences if M > 1.
        rngs: Victim v draws its tokens from rngs[v].

    Raises:
        InputError: If the network is not a language model, and without public sentences for M > 1.
    """
    most = lengths(view)  # No sentence is longer than the longest of its update.
    prefix, model = language_model_of(view, "lengths")
    name = "" if model.position_weights is None else prefix + model.position_weights[0]
    if view.examples == 1 or name not in view.update:
        return most
    targets = (LastLayerCounts() if view.labels is None else Given())(view, rngs).targets
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
        sizes = rows.square().sum(-1) + observed.square().sum(-1)
        return ((rows - observed).square().sum(-1) / sizes.clamp_min(1e-30)).sum(1)

    for _ in range(SWEEPS):
        for number in range(view.examples):
            costs = []
            for length in range(1, int(most.max()) + 1):
                tried = found.clone()
                tried[:, number] = length
                costs.append(cost(tried).masked_fill(length > most[:, number], torch.inf))
            found[:, number] = torch.stack(costs).argmin(0) + 1
    return found


SMOOTHING = 5.0
"""Count that a model of pairs adds to each pair."""


@dataclass(frozen=True)
class Bigrams:
    """A language model of pairs of neighbouring tokens, learned from sentences.

        p(b | a) = (n(a, b) + s p(b)) / (n(a) + s), with p(b) = (n(b) + 1) / (n + tokens)

    n(a, b) counts the pairs, n(a) the pairs that begin with a, n(b) the tokens b, and n all tokens; s is the smoothing.

    Args:
        alone: log p(b) for every token.
        pairs: a * tokens + b of all pairs that occur, ascending.
        known: log p(b | a) of each of them.
        back_off: log s / (n(a) + s) for every token a: the factor on p(b) for a token b that never followed a.
        first: Log-probabilities (tokens,) of the first token of a sentence.
        padding: Number of the token that fills up a sentence.
    """

    alone: Tensor
    pairs: Tensor
    known: Tensor
    back_off: Tensor
    first: Tensor
    padding: int

    @classmethod
    def of(cls, sentences: Tensor, tokens: int, padding: int, smoothing: float = SMOOTHING) -> Bigrams:
        """Learn the model from sentences (n, T) that are filled up with padding.

        Args:
            sentences: The sentences.
            tokens: Number of tokens.
            padding: Number of the token that fills up a sentence.
            smoothing: See above.
        """
        rows = sentences.long()
        before, after = rows[:, :-1], rows[:, 1:]
        there = (before != padding) & (after != padding)
        before, after = before[there], after[there]
        pairs, counts = torch.unique(before * tokens + after, return_counts=True)
        begins, occurs, opens = (
            torch.bincount(some, minlength=tokens).double()
            for some in (before, rows[rows != padding], _opening(rows, padding))
        )
        alone = (occurs + 1) / (occurs + 1).sum()
        known = (counts + smoothing * alone[pairs % tokens]) / (begins[pairs // tokens] + smoothing)
        first = opens + 1 / tokens
        back_off = smoothing / (begins + smoothing)
        return cls(alone.log(), pairs, known.log(), back_off.log(), (first / first.sum()).log(), padding)

    def after(self, first: Tensor, second: Tensor) -> Tensor:
        """Return log p(second | first), float64, of tokens of shapes that broadcast."""
        first, second = first.long(), second.long()
        unseen = self.alone[second] + self.back_off[first]
        if not len(self.pairs):
            return unseen
        key = first * len(self.alone) + second
        where = torch.searchsorted(self.pairs, key).clamp_max(len(self.pairs) - 1)
        return torch.where(self.pairs[where] == key, self.known[where], unseen)

    def log_probability(self, sentences: Tensor) -> Tensor:
        """Return log p (n,) of sentences (n, T), float64; -inf for a sentence without tokens."""
        first = self.first[sentences[:, 0].long()].masked_fill(sentences[:, 0] == self.padding, -torch.inf)
        return first + self._later(sentences)[0]

    def surprise(self, sentences: Tensor) -> Tensor:
        """Return the mean of -log p over the pairs of each sentence (..., T), the logarithm of its perplexity; 0 without pairs."""
        total, many = self._later(sentences)
        return -total / many.clamp_min(1)

    def _later(self, sentences: Tensor) -> tuple[Tensor, Tensor]:
        """Return (sum of log p over the pairs of each sentence (..., T), their number)."""
        before, after = sentences[..., :-1], sentences[..., 1:]
        there = (before != self.padding) & (after != self.padding)
        return (self.after(before, after) * there).sum(-1), there.sum(-1)

    def likeliest(self, ratios: Tensor, options: Tensor) -> Tensor:
        """Return the most likely tokens (L,) among options (L, k), given log-likelihood ratios (L, tokens); Viterbi's algorithm."""
        total = ratios[0, options[0]] + self.first[options[0]]
        back: list[Tensor] = []
        for place in range(1, len(options)):
            steps = self.after(options[place - 1][:, None], options[place])
            best, came = (total[:, None] + steps).max(0)
            total = best + ratios[place, options[place]]
            back.append(came)
        chosen = [int(total.argmax())]
        for came in reversed(back):
            chosen.append(int(came[chosen[-1]]))
        return torch.stack([row[at] for row, at in zip(options, reversed(chosen), strict=True)])


def _opening(rows: Tensor, padding: int) -> Tensor:
    """Return the first tokens of sentences (n, T) that have one."""
    return rows[:, 0][rows[:, 0] != padding]
