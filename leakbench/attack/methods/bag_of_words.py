"""The tokens of a batch from the gradients of the embeddings, without a search for sentences."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from leakbench.attack.embeddings import Embedded, embedded
from leakbench.attack.looks import averaged
from leakbench.attack.methods.dager import possible_of
from leakbench.attack.needs import TEXT, Needs
from leakbench.attack.one_step import likeliest
from leakbench.attack.slots.labels import LastLayer
from leakbench.attack.spans import layer_of, probes_of
from leakbench.attack.text import answer_of, language_model
from leakbench.core.answers import Reconstruction
from leakbench.core.part import Fraction, part
from leakbench.core.types import Generators
from leakbench.federated.view import View
from leakbench.models.language import LanguageModel

__all__ = ["BagOfWords"]


@part("method.bag_of_words")
class BagOfWords:
    """Return the tokens of a batch: those whose rows of the embedding's gradient are not zero (Melis et al., IEEE S&P 2019).

    Noise of a known size is taken into account. If more tokens have a gradient than the batch has places, those with the longest
    rows are taken. The gradient of the positions shows the longest sentence, and where most tokens are. Which sentence of the batch
    has a token is not known: the tokens of one place are divided over the sentences in the order of their shares.
    """

    needs: ClassVar[Needs] = Needs(kinds=(TEXT,))

    least: Annotated[
        Fraction,
        Field(description="Least share of a token's gradient in a position's at which the token is put there."),
    ] = 0.2
    tolerance: Annotated[
        Fraction,
        Field(description="Largest distance from the span of the first attention layer's gradient, as in `dager`."),
    ] = 0.15

    def __call__(self, views: tuple[View, ...], rngs: Generators) -> Reconstruction:
        """Reconstruct V victims.

        Args:
            views: Views of V victims, averaged where they show the same release.
            rngs: For the labels, which are those of `LastLayer`.

        Returns:
            Sentences; NaN, label -1 and certainty -inf without tokens, as with embeddings that are not trained.

        Raises:
            InputError: If the network is not a language model.
        """
        return likeliest([self._answer(view, rngs) for view, _ in averaged(views)])

    def missing(self, model: LanguageModel, trained: Sequence[str]) -> str:
        """Return what the method reads and a network does not train, empty for nothing."""
        return "" if model.word_weights in trained else "word embeddings"

    def _answer(self, view: View, rngs: Generators) -> Reconstruction:
        model = language_model(view, "bag_of_words")
        like = view.like
        inputs = like.new_full((view.victims, view.examples, *view.shape), torch.nan)
        for victim in range(view.victims):
            one = view.of(torch.tensor([victim], device=like.device))
            evidence = embedded(one, model)
            if evidence is not None and len(evidence.tokens):
                inputs[victim] = self._sentences(one, model, evidence)
        labels = torch.zeros(inputs.shape[:2], dtype=torch.int64, device=inputs.device)
        if view.classes > 1:  # The next tokens are no labels.
            guess = LastLayer()(view, rngs)
            labels = labels - 1 if guess.joint else guess.targets.argmax(-1)
        return answer_of(view, inputs, labels.masked_fill(~inputs.isfinite().all(-1), -1))

    def _sentences(self, view: View, model: LanguageModel, evidence: Embedded) -> Tensor:
        """Return sentences (M, T) of one victim; NaN where no token is left for a sentence."""
        many, length = view.examples, view.shape[0]
        reach = length if evidence.reach is None else max(1, evidence.reach)
        tokens = evidence.tokens[: many * reach]
        table = torch.full((many, length), float(model.padding), device=tokens.device)
        placed = torch.zeros(len(tokens), dtype=torch.bool, device=tokens.device)
        if evidence.places is not None:
            shares = evidence.places[: len(tokens)]
            first = next(iter(probes_of(model, tuple(view.update))), ())
            layer = layer_of(view.update, first, self.tolerance, view.noise) if first else None
            if layer is not None:
                possible = possible_of(view, model, layer, length, evidence)[tokens]
                shares = shares.masked_fill(~possible, 0.0)
            for place in range(reach):
                order = shares[:, place].argsort(descending=True)[:many]
                order = order[shares[order, place] > self.least]
                table[: len(order), place] = tokens[order].float()
                placed[order] = True
        free = (table[:, :reach] == model.padding).T.nonzero()  # Place by place, so that the tokens are divided evenly.
        left = tokens[~placed][: len(free)]
        table[free[: len(left), 1], free[: len(left), 0]] = left.float()
        return self._without_gaps(table, model.padding)

    def _without_gaps(self, table: Tensor, padding: int) -> Tensor:
        """Return sentences (M, T) with their padding at the end; NaN for a sentence of padding."""
        empty = table == padding
        moved = table.gather(1, empty.long().argsort(dim=1, stable=True))
        return moved.masked_fill(empty.all(1, keepdim=True), torch.nan)
