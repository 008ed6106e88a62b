"""What an attacker of texts knows apart from the gradient: the network's embeddings, and a model of public sentences."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from leakbench.attack.slots.distance import SquaredL2
from leakbench.core.answers import Reconstruction
from leakbench.core.errors import InputError
from leakbench.federated.view import View
from leakbench.models import one_hot
from leakbench.models.language import LanguageModel

__all__ = ["Bigrams", "WordEmbeddings", "answer_of", "language_model", "language_model_of"]


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
        like = view.like
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


def language_model(view: View, who: str) -> LanguageModel:
    """Return the network of a view of texts; raises InputError for another network, naming the attack."""
    model = view.network.model
    if not isinstance(model, LanguageModel):
        raise InputError(f"attack: {who!r} reads language models, got {type(model).__name__} (try --dataset reviews)")
    return model


def language_model_of(view: View, who: str) -> tuple[str, LanguageModel]:
    """Return (prefix of its parameters, the language model) of a view; a defense may wrap it.

    Raises:
        InputError: If the network is not a language model; the message names the part `who`.
    """
    for name, module in view.network.model.named_modules():
        if isinstance(module, LanguageModel):
            return f"{name}." if name else "", module
    raise InputError(f"{who}: needs texts, got inputs of shape {view.shape} (try --dataset reviews, or another part)")


def answer_of(view: View, inputs: Tensor, labels: Tensor, gradients: Tensor | None = None) -> Reconstruction:
    """Return sentences (V, M, T), NaN for a missing one, as a reconstruction after one step.

    Args:
        view: The view of V victims.
        inputs: The sentences.
        labels: Their labels (V, M); -1 for a missing one.
        gradients: Numbers (V,) of gradients that were computed for them; none without it. That of the answer itself is added.
    """
    there = inputs.isfinite().all(-1)
    padding = float(language_model(view, "texts").padding)
    with torch.no_grad():
        targets = one_hot(labels.clamp_min(0), view.classes).to(inputs)
        response = view.respond(inputs.nan_to_num(nan=padding), targets)
        distance = SquaredL2()(response, view.update, view)
    # A sentence that was found is an answer, also if another one of its batch is missing.
    distance = distance.masked_fill(~there.any(1), torch.inf)
    certainty = (-distance[:, None]).expand_as(labels).masked_fill(~there, -torch.inf)
    once = torch.ones(view.victims, dtype=torch.int64, device=inputs.device)
    many = once if gradients is None else once + gradients.to(once)
    return Reconstruction(
        inputs=inputs,
        labels=labels,
        certainty=certainty,
        trajectory=distance.masked_fill(distance.isinf(), torch.nan)[None],
        steps=once,
        evaluations=many,
        iterates=inputs[None],
        snapshots=(1,),
        spent=many[None],
    )


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
