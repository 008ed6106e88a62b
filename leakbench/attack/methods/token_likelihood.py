"""Likelihood of tokens: a sentence read from the gradients of embeddings, and searched by the likelihood of the whole gradient."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from leakbench.attack.embeddings import fitted_lengths, noise_on_words
from leakbench.attack.looks import averaged
from leakbench.attack.needs import TEXT, Needs
from leakbench.attack.one_step import likeliest
from leakbench.attack.public import public_of
from leakbench.attack.public_gradients import flat, gradients_alone
from leakbench.attack.text import SMOOTHING, Bigrams, answer_of, language_model
from leakbench.core.answers import Reconstruction
from leakbench.core.errors import InputError
from leakbench.core.part import Count, Positive, part
from leakbench.core.types import Generators, Parameters
from leakbench.federated.view import Public, View
from leakbench.models import one_hot
from leakbench.models.language import LanguageModel

__all__ = ["TokenLikelihood"]


@part("method.token_likelihood")
class TokenLikelihood:
    """Find the sentence that makes the observed gradient most likely, given known Gaussian noise.

    The gradient P_i of a position embedding is the derivative of the loss by the input of place i. The gradient W_v of a word
    embedding is the sum of these over the places of token v. The score of token v at place i is <R_v, P_i> / 2 s^2, where R_v is
    what the other places of v leave of W_v. For noise of deviation s on both and a flat prior of P_i, this is the log-likelihood
    without its term |R_v|^2 / 4 s^2, which prefers tokens with long rows at every place alike.

    The most likely sentence by these scores and a bigram model of public sentences is the start (Viterbi). The network's own P_i
    for this sentence, which have no noise, give better scores, <R_v, P_i> / s^2, and with them the next sentence, while the
    log-likelihood of the whole gradient, -|y - g|^2 / 2 s^2, plus the log-prior increases. Then one token at a time is exchanged
    or moved, or two are swapped, as long as this increases it. The label of the start is the likeliest one. A search that ends at
    its limit of gradients has not found the most likely sentence.

    For a batch, the tokens of each place are read together, and not searched.
    """

    needs: ClassVar[Needs] = Needs(public=1000, kinds=(TEXT,))

    tokens: Annotated[Count, Field(description="Number of tokens at a place that the search chooses from.")] = 64
    changes: Annotated[
        Count,
        Field(description="Number of changes that a round tries: the likeliest by the gradients of the embeddings."),
    ] = 40
    gradients: Annotated[Count, Field(description="Number of gradients after which the search of a sentence ends.")] = (
        1000
    )
    smoothing: Annotated[
        Positive,
        Field(description="Count that the bigram model adds to each pair, in units of the tokens' frequencies."),
    ] = SMOOTHING

    def __call__(self, views: tuple[View, ...], rngs: Generators) -> Reconstruction:
        """Reconstruct V victims.

        Args:
            views: Views of V victims.
            rngs: Victim v draws from rngs[v], see `fitted_lengths`.

        Raises:
            InputError: If the network is not a language model whose embeddings are trained, or without public sentences.
        """
        return likeliest([self._answer(view, rngs) for view, _ in averaged(views)])

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

    def _answer(self, view: View, rngs: Generators) -> Reconstruction:
        model = language_model(view, "token_likelihood")
        public = public_of(view, "token_likelihood", self.needs.public).inputs.cpu()
        prior = Bigrams.of(public, model.tokens, model.padding, self.smoothing)
        like = view.like
        inputs = like.new_full((view.victims, view.examples, *view.shape), torch.nan)
        labels = torch.full((view.victims, view.examples), -1, dtype=torch.int64, device=like.device)
        gradients = torch.zeros(view.victims, dtype=torch.int64)
        for victim, length in enumerate(fitted_lengths(view, rngs).amax(1).tolist()):
            one = view.of(torch.tensor([victim], device=like.device))
            rows = _Rows.of(one, model)
            if not (rows.places.any() and rows.places.isfinite().all() and rows.words.isfinite().all()):
                continue  # Nothing leaks through an update of zeros, and nothing is compared with one that is not finite.
            if view.examples == 1:
                view.tick(f"search of sentence {victim + 1} of {view.victims}")  # Each gradient also ticks.
                found = self._searched(one, rows, prior, length)
                inputs[victim, 0], labels[victim, 0], gradients[victim] = found.sentence, found.label, found.gradients
            else:
                inputs[victim] = rows.spread(view.examples, length)
        return answer_of(view, inputs, labels, gradients)

    def _searched(self, view: View, rows: _Rows, prior: Bigrams, length: int) -> _Found:
        """Return the sentence of the one victim of a view."""
        found = self._read(view, rows, prior, length)
        # Without a label, the network's own gradients are not finite.
        return found if found.label < 0 else self._improved(view, found, prior, length)

    def _read(self, view: View, rows: _Rows, prior: Bigrams, length: int) -> _Found:
        """Return the start: the likeliest sentence by the gradients of the embeddings, read until it gets no likelier."""
        found = _Found(torch.full((view.shape[0],), torch.nan), -1, -math.inf, rows, 0)
        while found.gradients < self.gradients:
            evidence = found.rows.evidence()
            guess = torch.full((view.shape[0],), float(rows.padding), dtype=torch.float32)
            options = (evidence + prior.alone).topk(min(self.tokens, evidence.shape[1] - 1), dim=1).indices
            guess[:length] = prior.likeliest(evidence[:length], options[:length]).float()
            values = self._values(view, rows.std, prior, guess.repeat(view.classes, 1), torch.arange(view.classes))
            gradients = found.gradients + len(values) + 1
            if not float(values.max()) > found.value:
                return dataclasses.replace(found, gradients=gradients)
            label = int(values.argmax())
            # The places of a good guess are closer to the true ones than the observed ones are, behind strong noise.
            found = _Found(guess, label, float(values[label]), rows.at(view, guess, label), gradients)
        return found

    def _improved(self, view: View, found: _Found, prior: Bigrams, length: int) -> _Found:
        """Return a sentence after changes that make it likelier."""
        sentence, label, value, rows, gradients = found.sentence, found.label, found.value, found.rows, found.gradients
        many = sum(u.numel() for u in view.update.values())
        expected, slack = -many / 2, 2 * math.sqrt(2 * many)
        tried, made, changed = 0, 0, self._changed(sentence, length, rows, prior)
        while gradients < self.gradients and len(some := changed[tried : tried + self.changes]):
            values = self._values(view, rows.std, prior, some, torch.full((len(some),), label))
            gradients, tried = gradients + len(some), tried + len(some)
            better = [k for k in values.argsort(descending=True).tolist() if float(values[k]) > value]
            if not better:
                # The true gradient's distance is that of the noise, p s^2 within a few of its deviations: if the likeliest changes
                # all cost more than the true sentence could gain, the present one is taken as the true one.
                if value - float(values.max()) > max(0.0, expected - value) + slack:
                    break
                continue
            # Improvements at different places are made together, if that is better than the best alone.
            both = some[better[0]].clone()
            touched = some[better[0]] != sentence
            for k in better[1:]:
                there = some[k] != sentence
                if not (there & touched).any():
                    both[there], touched = some[k][there], touched | there
            together = float(self._values(view, rows.std, prior, both[None], torch.tensor([label]))[0])
            gradients, best = gradients + 1, float(values[better[0]])
            sentence, value = (both, together) if together >= best else (some[better[0]], best)
            rows, made = rows.at(view, sentence, label), made + 1
            tried, changed = 0, self._changed(sentence, length, rows, prior)
        return _Found(sentence, label, value, rows, gradients + made)

    def _changed(self, sentence: Tensor, length: int, rows: _Rows, prior: Bigrams) -> Tensor:
        """Return sentences (n, T) to try, the likeliest first: one token is exchanged or moved, or two are swapped.

        Args:
            sentence: (T,).
            length: Number L of its tokens.
            rows: The gradients of the embeddings, with the places of this sentence.
            prior: Model of sentences.
        """
        ahead = (rows.evidence() + prior.alone)[:length]
        others = ahead.topk(min(self.tokens, ahead.shape[1] - 1), dim=1).indices  # All but the padding at most.
        exchanged = sentence.repeat(others.numel(), 1)
        exchanged[torch.arange(others.numel()), torch.arange(length).repeat_interleave(others.shape[1])] = (
            others.flatten().float()
        )
        orders = []
        for i in range(length):
            for j in range(length):
                rest = [*range(i), *range(i + 1, length)]
                orders.append([*rest[:j], i, *rest[j:]])
                if i < j:
                    swap = list(range(length))
                    swap[i], swap[j] = j, i
                    orders.append(swap)
        moved = sentence.repeat(len(orders), 1)
        moved[:, :length] = sentence[torch.tensor(orders)]
        every = torch.unique(torch.cat([exchanged, moved]), dim=0)
        every = every[(every != sentence).any(1)]
        likely = rows.likelihood(every[:, :length].long()) + prior.log_probability(every)
        ordered: Tensor = every[likely.argsort(descending=True, stable=True)]
        return ordered

    def _values(self, view: View, std: float, prior: Bigrams, sentences: Tensor, labels: Tensor) -> Tensor:
        """Return the log-posteriors (n,) of sentences (n, T) with labels (n,), up to a constant."""
        observed = flat(view.update)
        scores = []
        for g in gradients_alone(view, Public(sentences, labels)):
            # The difference first: products of large gradients would lose the small distance between them.
            scores.append(-(observed - g).double().square().sum(1) / (2 * std**2))
        return torch.cat(scores).cpu() + prior.log_probability(sentences)


@dataclass(frozen=True)
class _Rows:
    """The gradients of embeddings of one victim.

    Args:
        words: (tokens, d) float64.
        places: (T, d) float64.
        std: Standard deviation of the noise on each coordinate.
        padding: Number of the padding token, whose row is 0.
        known: Whether the places are without noise.
    """

    words: Tensor
    places: Tensor
    std: float
    padding: int
    known: bool = False

    @classmethod
    def of(cls, view: View, model: LanguageModel) -> _Rows:
        """Return the rows of a view with one victim."""
        words, places = view.update.get(model.word_weights), _placed(model, view.update)
        if words is None or places is None:
            raise InputError(
                "token_likelihood: reads the gradients of word and position embeddings, which this network does not train"
                " (try another attack, or a network that trains them)"
            )
        rows = words[0].double().cpu()  # These problems are small, and some have no method on a GPU.
        rounding = float(rows.abs().max()) * 1e-6
        std = max(float(noise_on_words(view, model.word_weights)[0]), rounding, torch.finfo(torch.float32).tiny)
        return cls(rows, places[: view.shape[0]], std, model.padding)

    def likelihood(self, sentences: Tensor) -> Tensor:
        """Return the log-likelihoods (n,) of tokens (n, L) of the first L places, given places without noise, up to a constant."""
        products, length = self.places @ self.words.T, sentences.shape[1]
        fit = products[torch.arange(length), sentences].sum(1)
        same = sentences[:, :, None] == sentences[:, None, :]
        twice = (same * (self.places @ self.places.T)[:length, :length]).sum((1, 2))
        return (fit - twice / 2) / self.std**2

    def at(self, view: View, sentence: Tensor, label: int) -> _Rows:
        """Return the rows with the places that the view's network gives a sentence (T,) with a label."""
        model = language_model(view, "token_likelihood")
        like = view.like
        targets = one_hot(torch.tensor([[label]], device=like.device), view.classes).to(like)
        with torch.no_grad():
            given = _placed(model, view.respond(sentence[None, None].to(like), targets))
        assert given is not None  # noqa: S101 - for mypy: `of` refuses a network without trained positions
        return dataclasses.replace(self, places=given[: view.shape[0]], known=True)

    def evidence(self) -> Tensor:
        """Return the evidence (T, tokens) for each token at each place, in nats, up to a constant of the place.

        The places of a token share its row: W = A P with a matrix A of zeros and a one for each place. Its least squares solution
        gives each place to a token, and `exchanged` improves it. The evidence is that of R_v without place i.
        """
        gram = self.places @ self.places.T
        ridge = gram + (gram.diagonal().amax() * RIDGE).clamp_min(TINIEST) * torch.eye(len(gram))
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
        found = products / (1 if self.known else 2) / self.std**2
        found[:, self.padding] = -torch.inf
        return found

    def spread(self, many: int, length: int) -> Tensor:
        """Return sentences (M, T) of the most likely tokens of each place, the likeliest in the first sentence."""
        best = self.evidence().topk(many, dim=1).indices.T.float()
        best[:, length:] = float(self.padding)
        return best.to(torch.float32)


def _placed(model: LanguageModel, gradients: Parameters) -> Tensor | None:
    """Return the gradients (places, d) of the one victim's embeddings of positions, float64; None if they are not trained."""
    name, first = model.position_weights or ("", 0)
    return gradients[name][0].double().cpu()[first:] if name in gradients else None


@dataclass(frozen=True)
class _Found:
    """What a search has found.

    Args:
        sentence: (T,), NaN for none.
        label: Its label, -1 for none.
        value: Its log-posterior, up to a constant.
        rows: The gradients of the embeddings, with the places of the sentence.
        gradients: Number of gradients that were computed.
    """

    sentence: Tensor
    label: int
    value: float
    rows: _Rows
    gradients: int


RIDGE = 1e-12
"""Share of the largest energy that is added to the energies of all places for the least squares."""

TINIEST = 1e-30
"""What is added at least: the own places of a sentence of one token are zero with the loss of next tokens."""

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
