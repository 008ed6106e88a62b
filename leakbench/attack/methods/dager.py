"""DAGER: sentences whose inputs of the first two attention layers are in the spans of these layers' gradients."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor
from torch.func import functional_call

from leakbench.attack.embeddings import Embedded, embedded
from leakbench.attack.looks import averaged
from leakbench.attack.needs import TEXT, Needs
from leakbench.attack.one_step import likeliest
from leakbench.attack.spans import HIDDEN, Layer, entering_of, layer_of, probes_of, trains_first
from leakbench.attack.text import answer_of, language_model
from leakbench.core.answers import Reconstruction
from leakbench.core.part import Count, Fraction, part
from leakbench.core.types import Generators, Parameters
from leakbench.federated.view import View
from leakbench.models import one_hot
from leakbench.models.language import LanguageModel
from leakbench.models.layers import entering

__all__ = ["Dager", "parameters_of", "possible_of"]


@part("method.dager")
class Dager:
    """Find the sentences of a batch exactly (Petrov et al., NeurIPS 2024, Algorithms 1 and 2).

    A token at a place is possible if its input of the first attention layer is in the span of this layer's gradient. A causal
    network shows its sentences token by token: a prefix is extended by each token whose input of the second layer is in that
    layer's span.

    The inputs of other networks depend on the whole sentence. A sentence of a given length with a given token at one place is
    solved for by least squares: from a mixture of all possible tokens at every place, each exchange of one place for one token
    moves the inputs outside of the span, and the shares of tokens whose moves add up to nothing outside are the next mixture.

    An attacker that knows the defense's noise takes the rank of a span and the allowed distance from the noise. Local steps move
    the inputs; an input is then compared on the line between the weights before and after the update.

    The sentences and labels of the batch are those whose gradients of the classifier add up to the observed one. An answer is
    complete if it explains the observed gradient; see `certainty`.
    """

    needs: ClassVar[Needs] = Needs(kinds=(TEXT,))

    tolerance: Annotated[
        Fraction,
        Field(
            description=(
                "Largest distance of an input from the span, as a share of the expected distance of an unrelated input. The "
                "rounding errors of the gradient usually allow much less."
            )
        ),
    ] = 0.15
    beam: Annotated[
        Count, Field(description="Largest number of prefixes for each sentence, if the network is causal.")
    ] = 8
    sweeps: Annotated[
        Count,
        Field(description="Largest number of mixtures on the way to a sentence, if the network is not causal."),
    ] = 8
    most: Annotated[
        Count, Field(description="Largest number of possible tokens at a place; more of them are no evidence.")
    ] = 1000
    effort: Annotated[
        Count,
        Field(description="Largest number of tokens that the search runs through the first layers, for each sentence."),
    ] = 500_000
    embeddings: Annotated[
        bool,
        Field(
            description=(
                "Whether to read the gradients of the embeddings, if they are trained: their tokens are the only possible ones, "
                "and their shares of the positions order the search."
            )
        ),
    ] = True

    def __call__(self, views: tuple[View, ...], rngs: Generators) -> Reconstruction:
        """Reconstruct V victims.

        Args:
            views: Views of V victims, averaged where they show the same release.
            rngs: Victim v draws the order of its search from rngs[v].

        Returns:
            Sentences in no order; NaN, label -1 and certainty -inf where none was found. The certainty of a victim whose sentences
            were all found is minus the squared distance of their gradient from the observed one.

        Raises:
            InputError: If the network is not a language model.
        """
        return likeliest([self._answer(view, rngs) for view, _ in averaged(views)])

    def missing(self, model: LanguageModel, trained: Sequence[str]) -> str:
        """Return what the method reads and a network does not train, empty for nothing."""
        return "" if trains_first(model, trained) else "the first two attention layers"

    def _answer(self, view: View, rngs: Generators) -> Reconstruction:
        model = language_model(view, "dager")
        like = view.like
        inputs = like.new_full((view.victims, view.examples, *view.shape), torch.nan)
        labels = torch.full((view.victims, view.examples), -1, dtype=torch.int64, device=like.device)
        for victim, rng in enumerate(rngs):
            one = view.of(torch.tensor([victim], device=like.device))
            what = "sentence" if view.examples == 1 else "batch"
            view.tick(f"search of {what} {victim + 1} of {view.victims}")
            sentences = self._sentences(one, model, rng)
            if len(sentences):
                rows, classes = chosen_of(one, model, sentences)
                inputs[victim, : len(rows)], labels[victim, : len(rows)] = rows, classes
        return answer_of(view, inputs, labels)

    def _sentences(self, view: View, model: LanguageModel, rng: torch.Generator) -> Tensor:
        """Return possible sentences (n, T) of the one victim of a view."""
        length = view.shape[0]
        if self.missing(model, tuple(view.update)):
            return view.like.new_zeros(0, length)
        layers = [
            layer_of(view.update, probes, self.tolerance, view.noise)
            for probes in probes_of(model, tuple(view.update))[:2]
        ]
        first, second = layers if len(layers) == 2 else (None, None)
        if first is None or second is None:
            return view.like.new_zeros(0, length)
        evidence = embedded(view, model) if self.embeddings else None
        possible = possible_of(view, model, first, length, evidence)
        if int(possible.sum(0).max()) > self.most:
            return possible.new_zeros(0, length).float()
        words = view.vocabulary
        search = _Search(
            view=view,
            model=model,
            parameters=parameters_of(view),
            possible=possible,
            special=torch.tensor(
                sorted(words.special - {model.padding}) if words is not None else [], dtype=torch.int64
            ),
            shares=_shares(evidence, possible),
            settings=self,
        )
        if model.causal:
            return search.causal(second)
        hidden = [
            layer_of(view.update, probes, self.tolerance, view.noise)
            for probes in probes_of(model, tuple(view.update), HIDDEN)[:1]
        ]
        return search.whole(tuple(layer for layer in (*hidden, second) if layer is not None), rng)


def parameters_of(view: View) -> Parameters:
    """Return the parameters of the one victim of a view."""
    if view.network.shared:
        return view.network.parameters
    return {name: p[0] for name, p in view.network.parameters.items()}


def moved_of(view: View) -> Parameters | None:
    """Return the parameters of the one victim of a view after its local steps, as its update says; None for one step."""
    if view.local_steps == 1:
        return None
    far = view.learning_rate * view.local_steps
    return {n: p - far * view.update[n][0] if n in view.update else p for n, p in parameters_of(view).items()}


AT_ONCE = 2_000_000
"""Number of values of inputs that are computed at once."""


def distance_of(view: View, model: LanguageModel, layer: Layer, tokens: Tensor, *more: Tensor) -> Tensor:
    """Return the distances (n, S) of tokens (n, S) from the spans of a layer, see `Layer.distance`.

    Args:
        view: The view of one victim.
        model: Its network.
        layer: The layer.
        tokens: Numbers of tokens.
        more: The arguments `places` and `seen` of `entering_of`.
    """
    entered = entering_of(model, parameters_of(view), layer.probes, tokens, *more)
    after = moved_of(view)
    return layer.distance(entered, None if after is None else entering_of(model, after, layer.probes, tokens, *more))


def possible_of(view: View, model: LanguageModel, layer: Layer, length: int, evidence: Embedded | None) -> Tensor:
    """Return (tokens, T) bool: whether a token may be at a place. The input of the first layer depends on nothing else."""
    device = view.like.device
    possible = torch.zeros(model.tokens, length, dtype=torch.bool, device=device)
    numbers = torch.arange(model.tokens, device=device) if evidence is None else evidence.tokens
    numbers = numbers[numbers != model.padding]  # Padding is hidden.
    for some in torch.split(numbers, max(1, AT_ONCE // (length * model.width))):
        rows = some[:, None].expand(-1, length).float()
        possible[some] = distance_of(view, model, layer, rows) < 1
    if evidence is not None and evidence.reach is not None:
        possible[:, evidence.reach :] = False
    return possible


def _shares(evidence: Embedded | None, possible: Tensor) -> Tensor:
    """Return (tokens, T): how likely each token is at each place by the embeddings; zeros without evidence."""
    shares = torch.zeros(possible.shape, dtype=torch.float64, device=possible.device)
    if evidence is not None and evidence.places is not None:
        shares[evidence.tokens] = evidence.places
    return shares


class _Spent(Exception):
    """The search has run as many tokens as it may."""


@dataclass
class _Search:
    """The search for the sentences of one victim.

    Args:
        view: The view of the victim.
        possible: (tokens, T) bool.
        special: Numbers (s,) of the special tokens, which begin and end a sentence.
        shares: (tokens, T), how likely each token is at each place.
        run: Number of tokens that were run through the first layers.
    """

    view: View
    model: LanguageModel
    parameters: Parameters
    possible: Tensor
    special: Tensor
    shares: Tensor
    settings: Dager
    run: int = 0

    def _spend(self, tokens: Tensor) -> None:
        self.view.tick()
        self.run += tokens.shape[0] * tokens.shape[1]
        if self.run > self.settings.effort * self.view.examples:
            raise _Spent

    def _entering(self, layer: Layer, tokens: Tensor) -> list[Tensor]:
        self._spend(tokens)
        return entering_of(self.model, self.parameters, layer.probes, tokens)

    def _distance(self, layer: Layer, tokens: Tensor, *more: Tensor) -> Tensor:
        self._spend(tokens)
        return distance_of(self.view, self.model, layer, tokens, *more)

    def causal(self, layer: Layer) -> Tensor:
        """Return the sentences (n, T) of a causal network: the prefixes that nothing extends."""
        length = self.possible.shape[1]
        prefixes: list[tuple[list[int], float]] = [([], 0.0)]
        ended: list[tuple[list[int], float]] = []
        for place in range(length):
            tokens = self.possible[:, place].nonzero()[:, 0]
            longer: list[tuple[list[int], float]] = []
            for prefix, total in prefixes:
                try:
                    distances = self._next(layer, prefix, tokens) if len(tokens) else tokens.double()
                except _Spent:
                    return self.possible.new_zeros(0, length).float()
                better = (distances < 1).nonzero()[:, 0].tolist()
                longer += [([*prefix, int(tokens[i])], total + float(distances[i])) for i in better]
                if not better and prefix:
                    ended.append((prefix, total))
            longer.sort(key=lambda pair: pair[1])
            prefixes = longer[: self.settings.beam * self.view.examples]
            if not prefixes:
                break
        ended += prefixes
        ended.sort(key=lambda pair: pair[1] / len(pair[0]))
        rows = torch.full((len(ended), length), float(self.model.padding))
        for row, (sentence, _) in zip(rows, ended, strict=True):
            row[: len(sentence)] = torch.tensor(sentence, dtype=torch.float32)
        return rows.to(self.possible.device)

    def _next(self, layer: Layer, prefix: list[int], tokens: Tensor) -> Tensor:
        """Return the distances (k,) of k tokens after a prefix, all in one sequence in which they do not see each other."""
        before, many = len(prefix), len(tokens)
        row = torch.cat([torch.tensor(prefix, device=tokens.device, dtype=tokens.dtype), tokens])[None].float()
        places = torch.arange(before + many, device=tokens.device).clamp_max(before)[None]
        seen = torch.ones(before + many, before + many, dtype=torch.bool, device=tokens.device).tril()
        seen[before:, before:] = torch.eye(many, dtype=torch.bool, device=tokens.device)
        return self._distance(layer, row, places, seen[None])[0, before:]

    def whole(self, layers: tuple[Layer, ...], rng: torch.Generator) -> Tensor:
        """Return sentences (n, T) of a network that sees whole sentences.

        Args:
            layers: Layers whose inputs the search solves for: the next one where a layer leads nowhere. A sentence must fit the
                last one.
            rng: Source of the order of anchors.
        """
        found: list[Tensor] = []
        covered = torch.zeros_like(self.possible)
        try:
            for place, token, length, sweeps in self._anchors(covered, rng):
                if covered[token, place]:
                    continue
                sentence = self._solved(layers, place, token, length, sweeps)
                if sentence is None or any(torch.equal(sentence, other) for other in found):
                    continue
                found.append(sentence)
                covered[sentence[:length].long(), torch.arange(length)] = True
                if len(found) == self.view.examples or self._explained(torch.stack(found)):
                    break
        except _Spent:
            pass
        return torch.stack(found) if found else self.possible.new_zeros(0, self.possible.shape[1]).float()

    def _anchors(self, covered: Tensor, rng: torch.Generator) -> Iterator[tuple[int, int, int, int]]:
        """Yield (place, token, length, number of sweeps) of searches, the most promising first.

        A sentence ends with a special token, such as [SEP]; if none is possible after the first place, it may end anywhere. Few
        sweeps from each end find most sentences. Others with the same length need another token that only one of them has.

        Args:
            covered: (tokens, T) bool, tokens of the sentences that were found so far; the caller changes it.
            rng: Source of the order where the embeddings give none.
        """
        ends = torch.zeros_like(self.possible)
        ends[self.special] = self.possible[self.special]
        ends[:, 0] = False
        if not ends.any():
            ends = self.possible.clone()
        noise = torch.rand(self.possible.shape, generator=rng, dtype=torch.float64).to(self.shares) * 1e-6
        order = (self.shares.abs() + noise).masked_fill(~self.possible, -1).flatten().argsort(descending=True)
        pairs = [divmod(i, self.possible.shape[1]) for i in order[: int(self.possible.sum())].tolist()]
        last = [(place, token) for token, place in pairs if ends[token, place]]
        lengths = list(dict.fromkeys(place + 1 for place, _ in last))
        for sweeps in (min(FEW, self.settings.sweeps), self.settings.sweeps):
            yield from ((place, token, place + 1, sweeps) for place, token in last)
        for token, place in pairs:
            ordered = sorted(lengths, key=lambda length: not (covered & ends)[:, length - 1].any())
            yield from ((place, token, length, self.settings.sweeps) for length in ordered if length > place)
        yield from ((0, token, 1, 1) for token, place in pairs if place == 0)

    def _explained(self, sentences: Tensor) -> bool:
        """Return whether a batch of some of the sentences has the observed gradient, up to a factor."""
        rows, labels = chosen_of(self.view, self.model, sentences)
        if len(rows) < self.view.examples:
            return False
        with torch.no_grad():
            response = self.view.respond(rows[None], one_hot(labels, self.view.classes).to(rows)[None])
        pairs = [(r.double(), self.view.update[n].double()) for n, r in response.items()]
        inner = sum(float((r * u).sum()) for r, u in pairs)
        lengths = [sum(float(pair[i].square().sum()) for pair in pairs) for i in (0, 1)]
        return inner > 0 and inner**2 > (1 - EXPLAINED**2) * lengths[0] * lengths[1]

    def _solved(self, layers: tuple[Layer, ...], place: int, token: int, length: int, sweeps: int) -> Tensor | None:
        """Return a sentence (T,) of a length with a token at a place whose inputs are all in the spans; None if none is found."""
        inside = self.possible.clone()
        inside[self.special, 1 : length - 1] = False  # Special tokens only begin and end a sentence.
        last = torch.zeros_like(inside[:, 0])
        last[self.special] = inside[self.special, length - 1]
        if length > 1 and last.any():
            inside[:, length - 1] = last
        inside[:, place] &= torch.arange(len(inside), device=inside.device) == token
        many = inside[:, :length].sum(0)
        if not many.all():
            return None
        options = inside[:, :length].T.long().argsort(dim=1, descending=True, stable=True)[:, : int(many.max())]
        there = torch.arange(options.shape[1], device=many.device) < many[:, None]
        vectors = self.parameters[self.model.word_weights][options]  # (L, O, width)
        mixture = there.to(vectors) / many[:, None]
        sentence = torch.full((self.possible.shape[1],), float(self.model.padding), device=many.device)
        way = list(layers)
        for _ in range(sweeps):
            before = sentence.clone()
            mixture = self._mixed(way[0], vectors, there, mixture)
            sentence[:length] = options.gather(1, mixture.argmax(1, keepdim=True))[:, 0].float()
            if not torch.equal(sentence, before):
                if float(self._distance(layers[-1], sentence[None, :length]).max()) < 1:
                    return sentence
            elif len(way) > 1:
                way.pop(0)
            if not (many > 1).any():
                break
        return None

    def _mixed(self, layer: Layer, vectors: Tensor, there: Tensor, mixture: Tensor) -> Tensor:
        """Return the next mixture (L, O) of the vectors (L, O, width) of the possible tokens at each of L places.

        Args:
            there: (L, O) bool, which vectors exist.
            mixture: Shares (L, O), which add up to 1 at each place.
        """
        mean = (mixture[..., None] * vectors).sum(1)
        at = (there & (there.sum(1, keepdim=True) > 1)).nonzero()
        if not len(at):
            return mixture
        now = layer.outside(self._entering(layer, mean[None]))
        moves = []
        for some in torch.split(at, max(1, AT_ONCE // (4 * mean.numel()))):
            exchanged = mean.repeat(len(some), 1, 1)
            exchanged[torch.arange(len(some)), some[:, 0]] = vectors[some[:, 0], some[:, 1]]
            moves.append(layer.outside(self._entering(layer, exchanged)) - now)
        move = torch.cat(moves)
        gram = torch.zeros(there.numel(), there.numel(), dtype=move.dtype, device=move.device)
        flat = at[:, 0] * there.shape[1] + at[:, 1]
        gram[flat[:, None], flat] = move @ move.T
        slope = torch.zeros(there.numel(), dtype=move.dtype, device=move.device)
        slope[flat] = move @ now[0]
        return _least(gram, slope, there, mixture)


FEW = 3
"""Number of sweeps in which most sentences are found."""

EXPLAINED = 1e-3
"""Largest sine of the angle between the gradients of a batch that is found and the observed one."""

STEPS = 300
"""Number of accelerated steps of least squares."""


def _least(gram: Tensor, slope: Tensor, there: Tensor, mixture: Tensor) -> Tensor:
    """Return shares q (L, O) that add up to 1 at each place, with the least q^T gram q / 2 + slope^T q.

    Accelerated projected gradients (Beck and Teboulle, 2009).

    Args:
        gram: (L * O, L * O).
        slope: (L * O,).
        there: (L, O) bool, where shares may be above 0.
        mixture: The shares at the start.
    """
    vector = torch.ones_like(slope)
    largest = slope.new_ones(())
    for _ in range(20):
        vector = gram @ vector
        largest = vector.norm().clamp_min(torch.finfo(vector.dtype).tiny)
        vector = vector / largest
    shares, ahead, pace = mixture, mixture, 1.0
    for _ in range(STEPS):
        moved = ahead.flatten() - (gram @ ahead.flatten() + slope) / (1.05 * largest)
        closer = _onto_shares(moved.reshape(there.shape), there)
        faster = (1 + (1 + 4 * pace * pace) ** 0.5) / 2
        ahead = closer + (pace - 1) / faster * (closer - shares)
        shares, pace = closer, faster
    return shares


def _onto_shares(values: Tensor, there: Tensor) -> Tensor:
    """Return the nearest shares (L, O) to values (L, O): not negative, 0 outside of `there`, with the sum 1 at each place."""
    ordered = values.masked_fill(~there, -torch.inf).sort(1, descending=True).values
    above = ordered.cumsum(1) - 1
    counts = torch.arange(1, values.shape[1] + 1, device=values.device)
    many = (ordered * counts > above).sum(1, keepdim=True)
    return (values - above.gather(1, many - 1) / many).clamp_min(0) * there


def chosen_of(view: View, model: LanguageModel, sentences: Tensor) -> tuple[Tensor, Tensor]:
    """Return the sentences (m, T) and labels (m,) of one victim, at most M, among possible ones (n, T).

    The gradient of the classifier is the mean of (p - e_y) h^T over the batch, for features h, probabilities p and labels y. Least
    squares over the features gives p - e_y for each sentence, and with it the label. A sentence that is not in the batch gets 0,
    and one that occurs twice the sum of two. Without a trained classifier, the first M sentences are returned, with label -1.
    """
    name, many = "classifier.weight", view.examples
    if name not in view.update:
        return sentences[:many], torch.full((min(many, len(sentences)),), -1, dtype=torch.int64)
    parameters = parameters_of(view)
    network = dataclasses.replace(view.network, parameters=parameters, shared=True)
    with torch.no_grad():
        features = entering(network, "classifier.", sentences).double()
        logits = functional_call(model, parameters, (sentences,)).double()
    expected = logits.softmax(-1)[:, None] - one_hot(torch.arange(view.classes), view.classes).to(logits)
    observed = many * view.update[name][0].double()
    left = torch.linalg.lstsq(features.T.cpu(), observed.T.cpu(), driver="gelsd").solution.to(features)
    picked: list[tuple[int, int]] = []
    once = min(many, len(sentences))
    for copies in range(many):
        errors = (left[:, None] - expected).square().sum(2)  # (n, classes)
        gains = left.square().sum(1)[:, None] - errors
        # Every sentence in the span belongs to the batch once; more of them must explain the gradient better.
        if copies < once:
            gains[[place for place, _ in picked]] = -torch.inf
        place, label = divmod(int(gains.argmax()), view.classes)
        if copies >= once and not gains[place, label] > 0:
            break
        picked.append((place, label))
        left[place] -= expected[place, label]
    places, labels = (torch.tensor(part, dtype=torch.int64) for part in zip(*picked, strict=True))
    return sentences[places], labels
