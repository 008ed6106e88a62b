"""DAGER: sentences whose inputs of the first two attention layers are in the spans of these layers' gradients."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor
from torch.func import functional_call

from leakbench.attack.looks import averaged
from leakbench.attack.needs import TEXT, Needs
from leakbench.attack.one_step import likeliest
from leakbench.attack.slots.distance import SquaredL2
from leakbench.attack.spans import Probe, Span, entering_of, probes_of, span_of
from leakbench.core.answers import Reconstruction
from leakbench.core.errors import InputError
from leakbench.core.part import Count, Fraction, part
from leakbench.core.types import Generators, Parameters
from leakbench.federated.view import View
from leakbench.models import one_hot
from leakbench.models.language import LanguageModel
from leakbench.models.layers import entering

__all__ = ["Dager", "language_model"]


def language_model(view: View, who: str) -> LanguageModel:
    """Return the network of a view of texts; raises InputError for another network, naming the attack."""
    model = view.network.model
    if not isinstance(model, LanguageModel):
        raise InputError(f"attack: {who!r} reads language models, got {type(model).__name__} (try --dataset reviews)")
    return model


@part("method.dager")
class Dager:
    """Find the sentences of a batch exactly (Petrov et al., NeurIPS 2024, Algorithms 1 and 2).

    A token at a place is possible if its input of the first attention layer is in the span of this layer's gradient. A causal
    network shows its sentences token by token: a prefix is extended by each token whose input of the second layer is in that
    layer's span. For other networks, the tokens of a whole sentence are exchanged one by one until the inputs of all its places are
    in the span. The sentences and labels of the batch are those whose gradients of the classifier add up to the observed one.

    An answer is complete if it explains the observed gradient; see `certainty`.
    """

    needs: ClassVar[Needs] = Needs(kinds=(TEXT,))

    tolerance: Annotated[
        Fraction,
        Field(
            description=(
                "Largest distance of an input from the span, as a share of the expected distance of an unrelated input; both are "
                "shares of the input's length."
            )
        ),
    ] = 0.15
    beam: Annotated[
        Count, Field(description="Largest number of prefixes, and of starts for other networks, for each sentence.")
    ] = 8
    sweeps: Annotated[
        Count,
        Field(description="Largest number of sweeps over the places of a sentence, if the network is not causal."),
    ] = 12
    most: Annotated[
        Count, Field(description="Largest number of possible tokens at a place; more of them are no evidence.")
    ] = 1000

    def __call__(self, views: tuple[View, ...], rngs: Generators) -> Reconstruction:
        """Reconstruct V victims.

        Args:
            views: Views of V victims, averaged where they show the same release.
            rngs: Victim v draws its starts from rngs[v].

        Returns:
            Sentences in no order; NaN, label -1 and certainty -inf where none was found. The certainty of a victim whose sentences
            were all found is minus the squared distance of their gradient from the observed one.

        Raises:
            InputError: If the network is not a language model.
        """
        return likeliest([self._answer(view, rngs) for view, _ in averaged(views)])

    def _answer(self, view: View, rngs: Generators) -> Reconstruction:
        model = language_model(view, "dager")
        like = next(iter(view.update.values()))
        inputs = like.new_full((view.victims, view.examples, *view.shape), torch.nan)
        labels = torch.full((view.victims, view.examples), -1, dtype=torch.int64, device=like.device)
        for victim, rng in enumerate(rngs):
            one = view.of(torch.tensor([victim], device=like.device))
            sentences = self._sentences(one, model, rng)
            if len(sentences):
                rows, classes = chosen_of(one, model, sentences)
                inputs[victim, : len(rows)], labels[victim, : len(rows)] = rows, classes
        return answer_of(view, inputs, labels)

    def _sentences(self, view: View, model: LanguageModel, rng: torch.Generator) -> Tensor:
        """Return possible sentences (n, T) of the one victim of a view."""
        parameters = _parameters(view)
        length = view.shape[0]
        nothing = next(iter(view.update.values())).new_zeros(0, length)
        layers = probes_of(model, tuple(view.update))[:2]
        spans = [_spans(view, probes) for probes in layers]
        if len(layers) < 2 or any(span is None for layer in spans for span in layer):
            return nothing
        first, second = (_Layer(*pair, self.tolerance) for pair in zip(layers, spans, strict=True))
        possible = _possible(model, parameters, first, length)
        possible[model.padding] = False
        if int(possible.sum(0).max()) > self.most:
            return nothing
        words = view.vocabulary
        special = sorted(words.special - {model.padding}) if words is not None else []
        search = _Search(model, parameters, second, possible, torch.tensor(special, dtype=torch.int64), self)
        return search.causal(view.examples) if model.causal else search.whole(view.examples, rng)


def _parameters(view: View) -> Parameters:
    if view.network.shared:
        return view.network.parameters
    return {name: p[0] for name, p in view.network.parameters.items()}


def _spans(view: View, probes: tuple[Probe, ...]) -> list[Span | None]:
    """Return the span of each probe's inputs in the update of a view's one victim."""
    found = []
    for probe in probes:
        gradients = [view.update[name][0] for name in probe.weights]
        found.append(span_of(gradients if probe.outer else [g.T for g in gradients]))
    return found


@dataclass(frozen=True)
class _Layer:
    """An attention layer with the spans of its inputs.

    Args:
        tolerance: See `Dager.tolerance`.
    """

    probes: tuple[Probe, ...]
    spans: list[Span | None]
    tolerance: float

    def distance(self, entered: list[Tensor]) -> Tensor:
        """Return the largest distance (n, S) of inputs (n, S, d) of the probes, as a share of the allowed one."""
        pairs = zip(entered, self.spans, strict=True)
        shares = [span.distance(x) / span.limit(self.tolerance) for x, span in pairs if span is not None]
        return torch.stack(shares).amax(0)


AT_ONCE = 2_000_000
"""Number of values of inputs that are computed at once."""


def _possible(model: LanguageModel, parameters: Parameters, layer: _Layer, length: int) -> Tensor:
    """Return (tokens, T) bool: whether a token may be at a place. The input of the first layer depends on nothing else."""
    numbers = torch.arange(model.tokens, device=next(iter(parameters.values())).device)
    found = []
    for some in torch.split(numbers, max(1, AT_ONCE // (length * model.width))):
        rows = some[:, None].expand(-1, length).float()
        # Padding would be hidden, and the row of the padding token is not read.
        found.append(layer.distance(entering_of(model, parameters, layer.probes, rows)) < 1)
    return torch.cat(found)


@dataclass(frozen=True)
class _Search:
    """The search for the sentences of one victim.

    Args:
        layer: The second attention layer.
        possible: (tokens, T) bool.
        special: Numbers (s,) of the special tokens, which begin and end a sentence.
    """

    model: LanguageModel
    parameters: Parameters
    layer: _Layer
    possible: Tensor
    special: Tensor
    settings: Dager

    def causal(self, many: int) -> Tensor:
        """Return the sentences (n, T) of a causal network: the prefixes that nothing extends."""
        length = self.possible.shape[1]
        prefixes: list[tuple[list[int], float]] = [([], 0.0)]
        ended: list[tuple[list[int], float]] = []
        for place in range(length):
            tokens = self.possible[:, place].nonzero()[:, 0]
            longer: list[tuple[list[int], float]] = []
            for prefix, total in prefixes:
                shares = self._next(prefix, tokens) if len(tokens) else tokens.double()
                better = (shares < 1).nonzero()[:, 0].tolist()
                longer += [([*prefix, int(tokens[i])], total + float(shares[i])) for i in better]
                if not better and prefix:
                    ended.append((prefix, total))
            longer.sort(key=lambda pair: pair[1])
            prefixes = longer[: self.settings.beam * many]
            if not prefixes:
                break
        ended += prefixes
        ended.sort(key=lambda pair: pair[1] / len(pair[0]))
        rows = torch.full((len(ended), length), float(self.model.padding))
        for row, (sentence, _) in zip(rows, ended, strict=True):
            row[: len(sentence)] = torch.tensor(sentence, dtype=torch.float32)
        return rows.to(self.possible.device)

    def _next(self, prefix: list[int], tokens: Tensor) -> Tensor:
        """Return the distances (k,) of k tokens after a prefix, all in one sequence in which they do not see each other."""
        before, many = len(prefix), len(tokens)
        row = torch.cat([torch.tensor(prefix, device=tokens.device, dtype=tokens.dtype), tokens])[None].float()
        places = torch.arange(before + many, device=tokens.device).clamp_max(before)[None]
        seen = torch.ones(before + many, before + many, dtype=torch.bool, device=tokens.device).tril()
        seen[before:, before:] = torch.eye(many, dtype=torch.bool, device=tokens.device)
        entered = entering_of(self.model, self.parameters, self.layer.probes, row, places, seen[None])
        return self.layer.distance([x[:, before:] for x in entered])[0]

    def whole(self, many: int, rng: torch.Generator) -> Tensor:
        """Return sentences (n, T) of a network that sees whole sentences.

        Each search starts at a token that is in no sentence yet, and stays there.
        """
        length = self.possible.shape[1]
        found: list[Tensor] = []
        covered = torch.zeros_like(self.possible)
        left = [(t, int(v)) for t in range(length) for v in self.possible[:, t].nonzero()[:, 0]]
        starts = self.settings.beam * many
        order = torch.randperm(len(left), generator=rng).tolist()
        for place, token in (left[i] for i in order):
            if covered[token, place] or not starts:
                continue
            starts -= 1
            sentence = self._settled(place, token, rng)
            if sentence is not None:
                found.append(sentence)
                used = sentence != self.model.padding
                covered[sentence[used].long(), used.nonzero()[:, 0]] = True
        rows = torch.stack(found) if found else self.possible.new_zeros(0, length).float()
        found_once: Tensor = torch.unique(rows, dim=0)
        return found_once

    def _settled(self, place: int, token: int, rng: torch.Generator) -> Tensor | None:
        """Return a sentence (T,) with a token at a place whose inputs are all in the span; None if none is found."""
        for length in self._lengths(place, token):
            sentence = self._descended(place, token, length, rng)
            if sentence[place] == token and float(self._shares(sentence[None]).max()) < 1:
                return sentence
        return None

    def _lengths(self, place: int, token: int) -> list[int]:
        """Return the possible lengths of a sentence with a token at a place.

        A sentence ends with a special token, such as [SEP]; if none is possible, it may end at every place.
        """
        reach = int(self.possible.any(0).long().cumprod(0).sum())
        ends = [t + 1 for t in range(max(1, place), reach) if self.possible[self.special, t].any()]
        if token in self.special.tolist() and place:
            return [place + 1]
        return ends or list(range(reach, place, -1))

    def _descended(self, place: int, token: int, length: int, rng: torch.Generator) -> Tensor:
        inside = self.possible.clone()
        inside[self.special, 1 : length - 1] = False  # Special tokens only begin and end a sentence.
        options = [inside[:, t].nonzero()[:, 0] for t in range(length)]
        if inside[self.special, length - 1].any():
            options[-1] = self.special[inside[self.special, length - 1]]
        if not all(len(o) for o in options):
            return torch.full((self.possible.shape[1],), float(self.model.padding))
        picked = [int(o[torch.randint(len(o), (1,), generator=rng)]) for o in options]
        picked[place] = token
        sentence = torch.full((self.possible.shape[1],), float(self.model.padding))
        sentence[:length] = torch.tensor(picked, dtype=torch.float32)
        value = float(self._shares(sentence[None]).square().sum())
        for _ in range(self.settings.sweeps):
            before = value
            for t in torch.randperm(length, generator=rng).tolist():
                if t == place or len(options[t]) < 2:
                    continue
                others = sentence.repeat(len(options[t]), 1)
                others[:, t] = options[t].float()
                totals = self._shares(others).square().sum(1)
                least = int(totals.argmin())
                if float(totals[least]) < value:
                    sentence, value = others[least], float(totals[least])
            if value >= before:
                break
        return sentence

    def _shares(self, sentences: Tensor) -> Tensor:
        """Return the distances (n, T) of the inputs of sentences (n, T); 0 at padding."""
        entered = entering_of(self.model, self.parameters, self.layer.probes, sentences)
        return self.layer.distance(entered).masked_fill(sentences == self.model.padding, 0.0)


def chosen_of(view: View, model: LanguageModel, sentences: Tensor) -> tuple[Tensor, Tensor]:
    """Return the sentences (m, T) and labels (m,) of one victim, at most M, among possible ones (n, T).

    The gradient of the classifier is the mean of (p - e_y) h^T over the batch, for features h, probabilities p and labels y. Least
    squares over the features gives p - e_y for each sentence, and with it the label. A sentence that is not in the batch gets 0,
    and one that occurs twice the sum of two. Without a trained classifier, the first M sentences are returned, with label 0.
    """
    name, many = "classifier.weight", view.examples
    if name not in view.update:
        return sentences[:many], torch.zeros(min(many, len(sentences)), dtype=torch.int64)
    parameters = _parameters(view)
    network = dataclasses.replace(view.network, parameters=parameters, shared=True)
    with torch.no_grad():
        features = entering(network, "classifier.", sentences).double()
        logits = functional_call(model, parameters, (sentences,)).double()
    expected = logits.softmax(-1)[:, None] - one_hot(torch.arange(view.classes), view.classes).to(logits)
    observed = many * view.update[name][0].double()
    left = torch.linalg.lstsq(features.T, observed.T, driver="gelsd").solution
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


def answer_of(view: View, inputs: Tensor, labels: Tensor) -> Reconstruction:
    """Return sentences (V, M, T), NaN where there are none, as a reconstruction after one step.

    Args:
        view: The view of V victims.
        inputs: The sentences.
        labels: Their labels (V, M); -1 where there are none.
    """
    there = inputs.isfinite().all(-1)
    padding = float(language_model(view, "texts").padding)
    with torch.no_grad():
        targets = one_hot(labels.clamp_min(0), view.classes).to(inputs)
        response = view.respond(inputs.nan_to_num(nan=padding), targets)
        distance = SquaredL2()(response, view.update, view)
    distance = distance.masked_fill(~there.all(1), torch.inf)
    certainty = (-distance[:, None]).expand_as(labels).masked_fill(~there, -torch.inf)
    once = torch.ones(view.victims, dtype=torch.int64, device=inputs.device)
    return Reconstruction(
        inputs=inputs,
        labels=labels,
        certainty=certainty,
        trajectory=distance.masked_fill(distance.isinf(), torch.nan)[None],
        steps=once,
        evaluations=once,
        iterates=inputs[None],
        snapshots=(1,),
        spent=once[None],
    )
