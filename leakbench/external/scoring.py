"""Score the reconstructions of external updates, and the time to reserve for it under a budget."""

from __future__ import annotations

import dataclasses
import time
from dataclasses import dataclass
from functools import cached_property

import pandas as pd
import torch
from torch import Tensor

from leakbench.attack.null.pictures import null_attack
from leakbench.attack.null.texts import null_texts
from leakbench.attack.public import FEW
from leakbench.attack.rankings.candidates import Candidates
from leakbench.attack.rankings.reconstructed import CALIBRATION, by_both
from leakbench.core.answers import Ranking, Reconstruction
from leakbench.core.errors import InputError
from leakbench.core.rng import generator
from leakbench.core.types import Generators
from leakbench.core.working_copy import copied
from leakbench.external.attacker import Attacker
from leakbench.external.trace import Trace
from leakbench.federated.view import Public, View
from leakbench.measure.closeness import PIXELS, closeness_of
from leakbench.measure.rates import IDENTIFIED
from leakbench.measure.recognised import gallery_of, score_recognised
from leakbench.models import one_hot
from leakbench.scoring.scores import VictimTruth, score
from leakbench.scoring.scores_rankings import score_ways
from leakbench.scoring.scores_targets import score_targets
from leakbench.scoring.scores_texts import score_text, text_judge
from leakbench.summary.limits import CANDIDATES

__all__ = ["LATE", "Scorer", "reserve", "seconds_per_gradient"]

LATE = 1.25
"""Largest factor between the time of a search and the prediction of its trial."""

RANKED = 0.1
"""Largest share of a budget for the gradients of the candidates."""

TIMINGS = 6
"""Number of gradients whose least time predicts the others."""

TIMED = 0.01
"""Largest share of a budget for these, after the first one."""

JUDGED = 6
"""Gradients of each reconstruction that are computed after the last search, to choose it and to score it."""


def seconds_per_gradient(view: View, budget: float) -> float:
    """Return the seconds of one victim's gradient, the least of several, since the first one also prepares.

    Args:
        view: The view.
        budget: Seconds of the attack; all gradients after the first take at most the share `TIMED` of it.
    """
    alone = view.of(torch.zeros(1, dtype=torch.int64))
    like = view.like
    inputs = torch.full((1, view.examples, *view.shape), 0.5).to(like)
    labels = one_hot(torch.zeros(1, view.examples, dtype=torch.int64), view.classes).to(like)
    taken = list[float]()
    while len(taken) < TIMINGS and sum(taken[1:]) < TIMED * budget:
        began = time.perf_counter()
        with torch.no_grad():
            alone.respond(inputs, labels)
        taken.append(time.perf_counter() - began)
    return min(taken)


def reserve(view: View, attacker: Attacker, each: float) -> tuple[float, int]:
    """Reserve time of a budget for choosing and scoring the reconstructions after the searches.

    Args:
        view: The view.
        attacker: The attacker, with a budget.
        each: Seconds of one gradient of the network.

    Returns:
        The seconds, and the number of candidates for identification, whose gradients take at most the share `RANKED` of the
        budget.
    """
    budget = attacker.budget or 0.0
    most = view.victims if attacker.data is None else CANDIDATES
    many = max(view.victims, min(most, int(RANKED * budget / max(each, 1e-9))))
    # The candidates of a batch are compared by the gradients of public examples.
    learned = FEW if view.examples > 1 else 0
    judged = JUDGED * view.victims * view.examples
    seconds = LATE * each * (judged + many + learned) + 0.02 * budget
    return min(0.5 * budget, seconds), many


@dataclass(frozen=True)
class Scorer:
    """Scores reconstructions of a trace.

    Args:
        trace: The trace.
        inputs: The true inputs (V, M, *s).
        labels: The true labels (V, M).
        attacker: The attacker.
        public: All public examples.
        view: The attacker's view, with the public examples and fits of the attack.
        rngs: One generator for each victim.
        candidates: Largest number of candidates for identification.
    """

    trace: Trace
    inputs: Tensor
    labels: Tensor
    attacker: Attacker
    public: Public
    view: View
    rngs: Generators
    candidates: int

    def __call__(self, answer: Reconstruction) -> tuple[pd.DataFrame, Tensor]:
        """Return a row for each example, and the reconstructions (V, M, *s) in the order of the truth."""
        attacker, public, view = self.attacker, self.public, self.view
        inputs, known = self.inputs, self.labels
        labels, victims = known.flatten(), torch.arange(view.victims)
        rng, data = generator(attacker.seed, "null"), attacker.data
        words = None if data is None else data.vocabulary
        if words is None:
            granted = labels if self.trace.heads is None else None
            null = null_attack(public.inputs, public.labels, len(labels), granted, attacker.eta, rng)
        else:
            null = null_texts(public.inputs, len(labels), attacker.eta, words, rng)
        shown, own = self._shown
        targets = None if self.trace.heads is None else self.trace.targets
        truth = VictimTruth(victims, inputs.float(), known, torch.zeros_like(known), own, answers=targets)
        likelihood = self._likelihood
        ranked = {IDENTIFIED.name: likelihood}
        ranked |= by_both((self._informed,), likelihood, shown, public.inputs[:CALIBRATION], answer)
        rows, matched = score(
            *(view.tap, view.clock.round + 1, answer, ranked, null, truth, attacker.eta, "no weights were given"),
            closeness=PIXELS if data is None else closeness_of(data),
        )
        gallery = None if data is None else gallery_of(data, attacker.seed)
        # The victims' places in the training data are unknown; the gallery leaves out images that equal a victim's.
        strangers = dataclasses.replace(truth, examples=torch.full_like(known, -1))
        best = null.guesses[null.best_for_success]
        rows = rows.join(score_ways(ranked, truth)).join(score_recognised(matched, strangers, best, gallery))
        if self.trace.heads is not None and targets is not None:
            errors = score_targets(answer, truth, self.trace.heads.blind(), self.trace.heads, PIXELS)
            rows = rows.join(errors)
        judge = None if data is None else text_judge(data, null)
        return rows if judge is None else rows.join(score_text(matched, truth, judge)), matched

    @property
    def left_out(self) -> str:
        """Sentence about candidates that a budget left out; empty for none."""
        known = 0 if self.attacker.data is None else len(self.public.labels)
        whole = max(self.view.victims, min(CANDIDATES, self.view.victims + known))
        if self.candidates >= whole:
            return ""
        return f"identification among {self.candidates} of {whole} candidates because of the budget"

    @cached_property
    def _informed(self) -> View:
        """The view of an attacker that knows the defense, for identification, as in every run."""
        informed = self.attacker.informed_view(self.trace)
        view = self.view
        return dataclasses.replace(
            informed, public=view.public, fits=view.fits, tick=view.tick, vocabulary=view.vocabulary
        )

    @cached_property
    def _shown(self) -> tuple[Public, Tensor]:
        """The candidates, and the place of each victim's first example among them (V,)."""
        targets = None if self.trace.heads is None else self.trace.targets
        return _candidates(self.inputs, self.labels, targets, self.public, self.attacker, self.candidates)

    @cached_property
    def _likelihood(self) -> Ranking:
        """The scores of the candidates, which do not depend on the reconstructions."""
        alone = dataclasses.replace(_of_one(self._informed), candidates=self._shown[0])
        return Candidates()((alone,), self.rngs)


def _candidates(
    inputs: Tensor, labels: Tensor, targets: Tensor | None, public: Public, attacker: Attacker, most: int
) -> tuple[Public, Tensor]:
    """Return the first examples of all victims with public ones of a dataset, shuffled, and the victims' places (V,).

    Public examples have no targets for a network that does not name classes, so that the victims alone are candidates.
    """
    few = public.first(0 if attacker.data is None or targets is not None else max(0, most - len(inputs)))
    pool = torch.cat([inputs[:, 0], few.inputs])
    order = torch.randperm(len(pool), generator=generator(attacker.seed, "candidates"))
    answers = None if targets is None else targets[:, 0][order]
    shown = Public(pool[order], torch.cat([labels[:, 0], few.labels])[order], answers)
    return shown, order.argsort()[: len(inputs)]


def _of_one(view: View) -> View:
    """Return the view with a network that takes a single example: in eval mode if one example has no variance."""
    try:
        with torch.no_grad():
            copied(view.network.model)(torch.zeros(1, *view.shape))
    except InputError:
        model = copied(view.network.model).eval()
        return dataclasses.replace(view, network=dataclasses.replace(view.network, model=model))
    return view
