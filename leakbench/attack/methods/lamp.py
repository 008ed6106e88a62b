"""LAMP: gradient matching of texts that alternates with rearrangements of their tokens, chosen with a language model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, TypeAlias

import torch
from pydantic import Field
from torch import Tensor

from leakbench.attack.looks import cut_of, unchanging
from leakbench.attack.methods.gradient_matching import GradientMatching, Points, Value, searched
from leakbench.attack.needs import TEXT, Needs
from leakbench.attack.public import public_of
from leakbench.attack.public_gradients import fitting
from leakbench.attack.search.adam import AdamState
from leakbench.attack.search.lbfgs import Objective
from leakbench.attack.slots.descent import Descended, Search, Terms
from leakbench.attack.slots.stop import Stop
from leakbench.attack.text import Bigrams, WordEmbeddings
from leakbench.core.errors import InputError
from leakbench.core.part import Count, Fraction, NonNegative, part
from leakbench.core.types import Generators
from leakbench.federated.view import View

__all__ = ["Lamp", "Rearranged", "rearrangement"]

KINDS = 4
"""Number of kinds of rearrangements."""

Rearrange: TypeAlias = Callable[[Tensor, Tensor, int], Tensor]
"""(points (v, d), their lanes (v,), step) -> order (v, M, T) of the places of each sentence."""


@part("method.lamp")
class Lamp(GradientMatching):
    """Alternate gradient matching with rearrangements of tokens (LAMP: Balunovic et al., NeurIPS 2022, Algorithm 1).

    A rearrangement swaps two tokens of a sentence, moves one, moves several neighbours, or puts its beginning at its end. The
    search continues with the candidate of the least distance plus perplexity. The language model counts the pairs of
    neighbouring tokens in public sentences. First and last tokens that all public sentences share stay in their places.
    """

    every: Annotated[Count, Field(description="Number of iterations between two rearrangements.")] = 75
    candidates: Annotated[
        Count, Field(description="Number of tried rearrangements, each of one sentence; the first leaves all as it is.")
    ] = 200
    after: Annotated[Fraction, Field(description="Share of the stop's iterations before the first rearrangement.")] = (
        0.1
    )
    perplexity: Annotated[
        NonNegative,
        Field(
            description=(
                "Factor of the logarithm of the perplexity per token, which is added to the distance, as a share of the distance "
                "of the present guess."
            )
        ),
    ] = 0.2
    public: Annotated[Count, Field(description="Largest number of public sentences for the language model.")] = 10_000

    @property
    def needs(self) -> Needs:
        """Texts, and public sentences."""
        return Needs(public=self.public, kinds=(TEXT,))

    def rearranged(self, limit: int) -> frozenset[int]:
        """Return the numbers of the steps after which tokens are rearranged, for a limit on iterations."""
        return frozenset(n for n in range(self.every, limit, self.every) if n >= self.after * limit)

    def between(self, limit: int) -> int:
        """Return the number of gradient evaluations of all rearrangements of one search."""
        return self.candidates * len(self.rearranged(limit))

    def _searched(
        self, views: tuple[View, ...], points: Points, start: Tensor, stop: Stop, rngs: Generators
    ) -> Descended:
        whole = self._value(views, points)

        def value(z: Tensor, targets: Tensor, hidden: Tensor | None, lanes: Tensor) -> Tensor:
            return whole(z, targets, None, lanes)

        seeds = [int(torch.randint(2**62, (), generator=rng)) for _ in range(self.restarts) for rng in rngs]
        candidates = _Candidates.of(views[0], points, value, self, tuple(seeds))
        searches = views[0].searches
        running = None if searches is None else searches.begin(self)
        descent = _Moving(self, candidates, points.shape)
        return searched(points, start, value, descent, stop, cut_of(views), running, views[0].tick, unchanging(views))


@dataclass(frozen=True)
class _Moving:
    """A descent whose searches rearrange tokens between their steps."""

    lamp: Lamp
    rearrange: Rearrange
    shape: torch.Size

    def __call__(self, start: Tensor, terms: Terms) -> Search:
        """Return the searches; raises InputError for another descent than Adam."""
        plain = self.lamp.descent(start, terms)
        if not isinstance(plain, AdamState):
            raise InputError(
                f"descent: got {type(self.lamp.descent).__name__}, expected adam or adam_linear, whose steps can be rearranged"
            )
        settings = (plain.points, plain.rates, plain.signed, plain.project, plain.decay, plain.epsilon)
        at, each = self.lamp.rearranged(terms.limit), self.lamp.candidates
        return Rearranged(*settings, rearrange=self.rearrange, at=at, each=each, shape=self.shape)


@dataclass
class Rearranged(AdamState):
    """Adam that rearranges the places of its points, and of its running means, after some steps.

    Args:
        rearrange: Chooses the order of the places.
        at: Steps after which it is called.
        each: Gradient evaluations that it takes for a search.
        shape: Shape (M, T * width) of the inputs of a point.

    Attributes:
        lanes: (V,), the number of each search from the start.
    """

    rearrange: Rearrange = field(kw_only=True)
    at: frozenset[int] = field(kw_only=True)
    each: int = field(kw_only=True)
    shape: torch.Size = field(kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.lanes = torch.arange(len(self.points), device=self.points.device)

    def step(self, objective: Objective) -> Tensor:
        """Take one step in place; return the values (V,) at the points before the step."""
        values = super().step(objective)
        if self.steps in self.at:
            order = self.rearrange(self.points, self.lanes, self.steps)
            self.points, self.first, self.second = (
                _ordered(part, order, self.shape) for part in (self.points, self.first, self.second)
            )
            self.evaluations = self.evaluations + self.each
        return values


def _ordered(points: Tensor, order: Tensor, shape: torch.Size) -> Tensor:
    """Return points (v, d) with the places of their inputs in another order (v, M, T)."""
    inputs = points[:, : shape.numel()].reshape(*order.shape, -1)
    moved = inputs.gather(2, order[..., None].expand_as(inputs))
    return torch.cat([moved.flatten(1), points[:, shape.numel() :]], 1)


def rearrangement(count: int, kind: int, rng: torch.Generator) -> list[int]:
    """Return a random order of `count` places.

    Args:
        count: Number of places.
        kind: 0 swaps two places, 1 moves one, 2 moves several neighbours, 3 puts the beginning at the end.
        rng: The generator.
    """

    def below(most: int) -> int:
        return int(torch.randint(most, (), generator=rng))

    order = list(range(count))
    if kind == 0:
        i, j = below(count), below(count)
        order[i], order[j] = order[j], order[i]
    elif kind == 1:
        moved = order.pop(below(count))
        order.insert(below(count), moved)
    elif kind == 2:
        first, last = sorted((below(count + 1), below(count + 1)))
        part, rest = order[first:last], order[:first] + order[last:]
        to = below(len(rest) + 1)
        order = rest[:to] + part + rest[to:]
    else:
        cut = below(count)
        order = order[cut:] + order[:cut]
    return order


@dataclass(frozen=True)
class _Candidates:
    """Chooses the best of random rearrangements.

    Args:
        points: The meaning of a point.
        value: The distance of guesses.
        lamp: The settings.
        words: The word embeddings.
        model: The language model.
        ends: Whether the first place of a sentence stays, and its last one.
        seeds: One number for each lane.
        victims: V; lane i belongs to victim i modulo V.
        together: Number of candidates that are evaluated at once.
    """

    points: Points
    value: Value
    lamp: Lamp
    words: WordEmbeddings
    model: Bigrams
    ends: tuple[bool, bool]
    seeds: tuple[int, ...]
    victims: int
    together: int

    @classmethod
    def of(cls, view: View, points: Points, value: Value, lamp: Lamp, seeds: tuple[int, ...]) -> _Candidates:
        """Return the candidates for a view; raises InputError if it has no public sentences."""
        words = WordEmbeddings.of(view, "method: lamp")
        sentences = public_of(view, "lamp", lamp.public).inputs.to(words.weight.device)
        model = Bigrams.of(sentences, words.weight.shape[1], words.padding)
        lasts = (sentences != words.padding).sum(1).clamp_min(1) - 1
        ends = (sentences[:, 0], sentences.gather(1, lasts[:, None])[:, 0])
        same = (bool((ends[0] == ends[0][0]).all()), bool((ends[1] == ends[1][0]).all()))
        together = max(1, fitting(view, 64_000_000) // view.examples)  # More at once are not faster.
        return cls(points, value, lamp, words, model, same, seeds, view.victims, together)

    def __call__(self, points: Tensor, lanes: Tensor, step: int) -> Tensor:
        """Return the best order (v, M, T) of the places for points (v, d) of the given lanes."""
        inputs = self.points.inputs(points)  # (v, M, T, width)
        counts = (inputs != 0).any(-1).sum(2)
        orders = torch.stack([self._orders(*each, step) for each in zip(counts.tolist(), lanes.tolist(), strict=True)])
        orders = orders.to(points.device)  # (v, n, M, T)
        which = torch.arange(len(points), device=points.device).repeat_interleave(orders.shape[1])
        values = []
        with torch.no_grad():
            for some, at in zip(
                *(torch.split(every, self.together) for every in (orders.flatten(0, 1), which)), strict=True
            ):
                moved = _ordered(points[at], some, self.points.shape)
                values.append(self.value(*self.points.split(moved, lanes[at]), lanes[at]))
        words = WordEmbeddings(self.words.name, self._weights(lanes), self.words.padding)
        tokens = words.nearest(inputs)[:, None].expand(-1, orders.shape[1], -1, -1).gather(3, orders)
        surprise = self.model.surprise(tokens).mean(2)
        distance = torch.cat(values).double().reshape(surprise.shape)
        score = distance / distance[:, :1].clamp_min(1e-30) + self.lamp.perplexity * surprise
        best = score.nan_to_num(nan=torch.inf).argmin(1)
        return orders[torch.arange(len(orders), device=best.device), best]

    def _weights(self, lanes: Tensor) -> Tensor:
        """Return the word embeddings (1 or v, tokens, width) that the victims of lanes received."""
        return self.words.weight if len(self.words.weight) == 1 else self.words.weight[lanes % self.victims]

    def _orders(self, counts: list[int], lane: int, step: int) -> Tensor:
        """Return a lane's candidates (n, M, T) for sentences of these numbers of tokens; the first one changes nothing."""
        rng = torch.Generator().manual_seed((self.seeds[lane] + step) % 2**63)
        orders = torch.arange(self.points.shape[-1] // self.words.width).repeat(self.lamp.candidates, len(counts), 1)
        begin, end = self.ends
        for number in range(1, len(orders)):
            sentence = int(torch.randint(len(counts), (), generator=rng))
            free = counts[sentence] - begin - end
            if free > 1:
                order = rearrangement(free, number % KINDS, rng)
                orders[number, sentence, begin : begin + free] = begin + torch.tensor(order)
        return orders
