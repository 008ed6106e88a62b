"""Likelihood of tokens: a sentence read from the gradients of embeddings, and searched by the likelihood of the whole gradient."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from leakbench.attack.looks import averaged
from leakbench.attack.methods.dager import answer_of, language_model
from leakbench.attack.needs import TEXT, Needs
from leakbench.attack.one_step import likeliest
from leakbench.attack.public import public_of
from leakbench.attack.public_gradients import flat, gradients_alone
from leakbench.attack.text import SMOOTHING, Bigrams
from leakbench.core.answers import Reconstruction
from leakbench.core.errors import InputError
from leakbench.core.part import Count, Positive, part
from leakbench.core.types import Generators
from leakbench.federated.view import Public, View
from leakbench.models.language import LanguageModel

__all__ = ["TokenLikelihood"]


@part("method.token_likelihood")
class TokenLikelihood:
    """Find the sentence that makes the observed gradient most likely, given known Gaussian noise.

    The gradient P_i of a position embedding is the derivative of the loss by the input of place i. The gradient W_v of a word
    embedding is the sum of these over the places of token v. With a flat prior of P_i and noise of deviation s on both, the
    log-likelihood of place i of token v is <R_v, P_i> / 2 s^2, up to a constant, where R_v is what the other places of v leave of
    W_v. The most likely sentence under this evidence and a bigram model of public sentences is the start (Viterbi). Then
    tokens are exchanged and places swapped while the log-likelihood of the whole gradient, -|y - g|^2 / 2 s^2, plus the log-prior
    increases.

    For a batch, the tokens of each place are read together, and not searched.
    """

    needs: ClassVar[Needs] = Needs(public=1000, kinds=(TEXT,))

    tokens: Annotated[Count, Field(description="Number of tokens at a place that the start chooses from.")] = 64
    tries: Annotated[Count, Field(description="Number of tokens at a place that the search tries.")] = 4
    sweeps: Annotated[Count, Field(description="Largest number of rounds of the search.")] = 8
    changes: Annotated[
        Count,
        Field(description="Number of changes that a round tries: the likeliest by the evidence of single places."),
    ] = 40
    smoothing: Annotated[
        Positive,
        Field(description="Count that the bigram model adds to each pair, in units of the tokens' frequencies."),
    ] = SMOOTHING

    def __call__(self, views: tuple[View, ...], rngs: Generators) -> Reconstruction:
        """Reconstruct V victims.

        Args:
            views: Views of V victims.
            rngs: Not used.

        Raises:
            InputError: If the network is not a language model whose embeddings are trained, or without public sentences.
        """
        return likeliest([self._answer(view) for view, _ in averaged(views)])

    def missing(self, model: LanguageModel, trained: Sequence[str]) -> str:
        """Return what the method reads and a network does not train, empty for nothing."""
        names = (model.word_weights, *(model.position_weights or ("",))[:1])
        return "" if all(name in trained for name in names) else "word and position embeddings"

    def applies(self, view: View) -> bool:
        """Return whether the network trains both embeddings, which the method reads, and the view has public sentences."""
        model = view.network.model
        if not isinstance(model, LanguageModel) or view.public is None or not len(view.public.labels):
            return False
        return not self.missing(model, tuple(view.update))

    def _answer(self, view: View) -> Reconstruction:
        model = language_model(view, "token_likelihood")
        public = public_of(view, "token_likelihood", self.needs.public).inputs.cpu()
        prior = Bigrams.of(public, model.tokens, model.padding, self.smoothing)
        like = next(iter(view.update.values()))
        inputs = like.new_full((view.victims, view.examples, *view.shape), torch.nan)
        labels = torch.full((view.victims, view.examples), -1, dtype=torch.int64, device=like.device)
        for victim in range(view.victims):
            one = view.of(torch.tensor([victim], device=like.device))
            rows = _Rows.of(one, model)
            if view.examples == 1:
                sentence, label = self._searched(one, rows, prior)
                inputs[victim, 0], labels[victim, 0] = sentence, label
            else:
                inputs[victim] = rows.spread(view.examples)
        return answer_of(view, inputs, labels)

    def _searched(self, view: View, rows: _Rows, prior: Bigrams) -> tuple[Tensor, int]:
        """Return the sentence (T,) and label of the one victim of a view."""
        evidence = rows.evidence()
        ahead = evidence + prior.alone
        options = ahead.topk(min(self.tokens, ahead.shape[1]), dim=1).indices
        length = rows.length()
        start = prior.likeliest(evidence[:length], options[:length])
        sentence = torch.full((view.shape[0],), float(rows.padding), dtype=torch.float32)
        sentence[:length] = start.float()
        every = sentence.repeat(view.classes, 1)
        values = self._values(view, rows, prior, every, torch.arange(view.classes))
        label, value = int(values.argmax()), float(values.max())
        many = sum(u.numel() for u in view.update.values())
        # The distance of the true gradient is that of the noise, p s^2 within a few of its deviations.
        enough = -many / 2 * (1 + 4 * math.sqrt(2 / many))
        for _ in range(self.sweeps):
            if value - float(prior.log_probability(sentence[None])[0]) >= enough:
                break
            changed = self._changed(sentence[:length], evidence[:length] + prior.alone, options[:length])
            if not len(changed):
                break
            whole = sentence.repeat(len(changed), 1)
            whole[:, :length] = changed
            found = self._values(view, rows, prior, whole, torch.full((len(whole),), label))
            better = [k for k in found.argsort(descending=True).tolist() if float(found[k]) > value]
            if not better:
                break
            # Improvements at different places are made together, if that is better than the best alone.
            both = whole[better[0]].clone()
            touched = whole[better[0]] != sentence
            for k in better[1:]:
                there = whole[k] != sentence
                if not (there & touched).any():
                    both[there], touched = whole[k][there], touched | there
            together = float(self._values(view, rows, prior, both[None], torch.tensor([label]))[0])
            best = float(found[better[0]])
            sentence, value = (both, together) if together >= best else (whole[better[0]], best)
        return sentence, label

    def _changed(self, sentence: Tensor, ahead: Tensor, options: Tensor) -> Tensor:
        """Return sentences (n, L) to try: another likely token at a place, or two places swapped.

        Args:
            sentence: (L,).
            ahead: Evidence and prior (L, tokens).
            options: The likeliest tokens (L, k) of each place.
        """
        length = len(sentence)
        now = sentence.long()
        own = ahead[torch.arange(length), now]
        tried = options[:, : self.tries]
        losses: list[tuple[Tensor, tuple[int, int], tuple[int, int] | None]] = [
            (own[p] - ahead[p, t], (p, int(t)), None) for p in range(length) for t in tried[p] if t != now[p]
        ]
        across = ahead[:, now]
        swaps = own[:, None] + own - across - across.T
        pairs = torch.triu_indices(length, length, 1).T.tolist()
        losses += [(swaps[i, j], (i, int(now[j])), (j, int(now[i]))) for i, j in pairs if now[i] != now[j]]
        losses.sort(key=lambda each: float(each[0]))
        rows = []
        for _, one, other in losses[: self.changes]:
            row = sentence.clone()
            for place, token in filter(None, (one, other)):
                row[place] = float(token)
            rows.append(row)
        return torch.stack(rows) if rows else sentence.new_zeros(0, length)

    def _values(self, view: View, rows: _Rows, prior: Bigrams, sentences: Tensor, labels: Tensor) -> Tensor:
        """Return the log-posteriors (n,) of sentences (n, T) with labels (n,), up to a constant."""
        observed = flat(view.update)
        scores = []
        for g in gradients_alone(view, Public(sentences, labels)):
            # The difference first: products of large gradients would lose the small distance between them.
            scores.append(-(observed - g).double().square().sum(1) / (2 * rows.std**2))
        return torch.cat(scores).cpu() + prior.log_probability(sentences)


@dataclass(frozen=True)
class _Rows:
    """The gradients of embeddings of one victim.

    Args:
        words: (tokens, d) float64.
        places: (T, d) float64.
        std: Standard deviation of the noise on each coordinate.
        padding: Number of the padding token, whose row is 0.
    """

    words: Tensor
    places: Tensor
    std: float
    padding: int

    @classmethod
    def of(cls, view: View, model: LanguageModel) -> _Rows:
        """Return the rows of a view with one victim."""
        name, first = model.position_weights or ("", 0)
        words, places = view.update.get(model.word_weights), view.update.get(name)
        if words is None or places is None:
            raise InputError(
                "token_likelihood: reads the gradients of word and position embeddings, which this network does not train"
                " (try dager, or --trainable all)"
            )
        rows = words[0].double().cpu()  # Small problems, of which some have no method on a GPU.
        # Most tokens are not in the batch, so that the median of their rows is that of the noise.
        seen = float(rows.abs().median()) / NORMAL_MEDIAN
        rounding = float(rows.abs().max()) * 1e-6
        std = max(view.noise if view.noise else seen, rounding, torch.finfo(torch.float32).tiny)
        return cls(rows, places[0].double().cpu()[first : first + view.shape[0]], std, model.padding)

    def evidence(self) -> Tensor:
        """Return the evidence (T, tokens) for each token at each place, in nats, up to a constant of the place.

        The places of a token share its row: W = A P with a matrix A of zeros and a one for each place. Its least squares solution
        gives each place to a token, and `exchanged` improves it. The evidence is that of R_v without place i.
        """
        gram = self.places @ self.places.T
        ridge = gram + gram.diagonal().amax() * ROUNDING * torch.eye(len(gram))
        products = self.words @ self.places.T
        products[self.padding] = -torch.inf
        used = self.words.square().sum(1).topk(min(2 * len(gram), len(self.words))).indices
        used = used[used != self.padding]
        start = torch.linalg.solve(ridge, products[used].T).argmax(1)
        owner = used[exchanged(start, products[used], gram)]
        together = torch.zeros_like(products)
        together.index_add_(0, owner, gram)
        together[owner, torch.arange(len(owner))] -= gram.diagonal()
        products = (products - together).T
        found = products / (2 * self.std**2)
        found[:, self.padding] = -torch.inf
        return found

    def length(self) -> int:
        """Return the most likely number of places that hold a token: those before it have more energy than noise."""
        width = self.places.shape[1]
        excess = self.places.square().sum(1) / self.std**2 - width - 2 * math.sqrt(2 * width)
        return max(1, int(excess.cumsum(0).argmax()) + 1)

    def spread(self, many: int) -> Tensor:
        """Return sentences (M, T) of the most likely tokens of each place, the likeliest in the first sentence."""
        best = self.evidence().topk(many, dim=1).indices.T.float()
        best[:, self.length() :] = float(self.padding)
        return best.to(torch.float32)


ROUNDING = 1e-12
"""Share of the largest energy that is added to the energies of all places for the least squares."""

RESTARTS = 30
"""Number of times that an improved start is disturbed and improved again."""

DISTURBED = 4
"""Number of places whose tokens are exchanged at random by a disturbance."""


def exchanged(owner: Tensor, products: Tensor, gram: Tensor) -> Tensor:
    """Return the owners (T,) of the places after moves and swaps that decrease the sum of |W_v - sum of its P_i|^2.

    Args:
        owner: Index of the token of each place, the start.
        products: <W_v, P_i> (u, T).
        gram: <P_i, P_j> (T, T).
    """
    rng = torch.Generator().manual_seed(0)
    best = _settled(owner.clone(), products, gram)
    least = _cost(best, products, gram)
    for _ in range(RESTARTS):
        other = best.clone()
        some = torch.randperm(len(other), generator=rng)[:DISTURBED]
        other[some] = other[some[torch.randperm(len(some), generator=rng)]]
        other = _settled(other, products, gram)
        cost = _cost(other, products, gram)
        if cost < least:
            best, least = other, cost
    return best


def _cost(owner: Tensor, products: Tensor, gram: Tensor) -> float:
    same = owner[:, None] == owner
    return float((gram * same).sum() - 2 * products[owner, torch.arange(len(owner))].sum())


def _settled(owner: Tensor, products: Tensor, gram: Tensor) -> Tensor:
    """Return owners after the best moves and swaps, one at a time, until none decreases the cost."""
    places = torch.arange(len(owner))
    for _ in range(10 * len(owner)):
        together = torch.zeros_like(products)
        together.index_add_(0, owner, gram)
        together[owner, places] -= gram.diagonal()
        gain = products - together  # What a token explains of a place beyond its other places.
        now = gain[owner, places]
        move, to = (gain - now).max(0)
        # In a swap, each place also makes room for the other.
        swap = gain[owner].T + gain[owner] + 2 * gram - now[:, None] - now
        swap.masked_fill_(owner[:, None] == owner, 0.0)
        if float(swap.max()) > float(move.max()) and float(swap.max()) > TINY * float(gram.diagonal().amax()):
            i, j = divmod(int(swap.argmax()), len(owner))
            owner[i], owner[j] = int(owner[j]), int(owner[i])
        elif float(move.max()) > TINY * float(gram.diagonal().amax()):
            place = int(move.argmax())
            owner[place] = to[place]
        else:
            break
    return owner


TINY = 1e-9
"""Share of the largest energy below which a gain is rounding."""

NORMAL_MEDIAN = 0.6745
"""Median of the absolute value of a standard normal number."""
