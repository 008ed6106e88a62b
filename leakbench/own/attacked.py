"""The attack on what leaked from a program of somebody's, and its scores: the one place where such leaks meet the attacks."""

from __future__ import annotations

import dataclasses
import time
from typing import Any

import torch

from leakbench.answers import Reconstruction
from leakbench.attack import Attack
from leakbench.attack.clock import runs, search_costs
from leakbench.attack.doubts import BUDGET
from leakbench.attack.isolation import answered
from leakbench.attack.methods.autoleak import CHECK, AutoLeak
from leakbench.attack.public import FEW
from leakbench.attack.searches import Searches, Store, usual_share
from leakbench.attack.slots.stop import searches_of
from leakbench.errors import InputError
from leakbench.experiment.attack_time import within_seconds
from leakbench.federated.view import View
from leakbench.fit_store import FitStore, fit_folder
from leakbench.own.attacker import Attacker, told
from leakbench.own.overlap import without_truth
from leakbench.own.scoring import LATE, Closing, Scorer, closing_of, seconds_per_gradient
from leakbench.own.seen import Seen
from leakbench.own.table import Outcome
from leakbench.progress import Reporter, minutes
from leakbench.rng import generators
from leakbench.summary.evidence import Setup, is_strongest
from leakbench.summary.limits import CANDIDATES
from leakbench.summary.tap import tap_summary
from leakbench.summary.verdict import STRONGEST
from leakbench.summary.warnings import WORDS
from leakbench.types import Generators

__all__ = ["QUICK", "attack_seen"]

PACE = 0.05
"""Share of a search after which its speed is known better than by its trial."""

QUICK = 5.0
"""Predicted seconds up to which an attack prints no estimate, and seconds after which it shows its progress in a file."""

COUNTED = 0.02
"""Largest share of a budget for one pass over the public examples, by which labels are counted and pictures whitened."""

LEAST_PUBLIC = 16
"""Number of public examples that a budget leaves at least."""


def attack_seen(
    seen: Seen,
    attacker: Attacker,
    reporter: Reporter | None = None,
    store: Store | None = None,
    spent: float = 0.0,
    began: float | None = None,
) -> Outcome:
    """Attack what leaked and score the answers where the truth is known.

    A budget is a limit on all of it: the preparation, the searches, and the scores, for which time is reserved.

    Raises InputError for an attack that needs what nobody can be granted here: true labels, candidates, another model.

    Args:
        reporter: Shows the progress; None makes one.
        store: Where searches are kept, so that an interrupted attack resumes; None keeps nothing.
        spent: Seconds of the budget that earlier processes used.
        began: When the budget of this process began, by `time.monotonic`; None for now.
    """
    began = time.monotonic() if began is None else began
    _check(attacker.attack)
    view, needs = told(seen, attacker), attacker.attack.needs
    public, _ = without_truth(attacker.public(view.shape, view.classes), seen.inputs)
    report = Reporter(after=QUICK) if reporter is None else reporter
    report.tick("preparation")
    view, each = (
        dataclasses.replace(view, fits=FitStore(fit_folder()), tick=lambda step="", _=None: report.tick(step)),
        0.0,
    )
    most = max(FEW, needs.public)
    if attacker.budget is not None:
        each = seconds_per_gradient(view, attacker.budget)
        most = max(LEAST_PUBLIC, min(most, int(COUNTED * attacker.budget / max(each, 1e-9))))
    view = dataclasses.replace(view, public=public.first(most))
    rngs = generators(attacker.seed, "attack", [(seen.view.clock.round, v) for v in range(view.victims)])
    scored = seen.inputs is not None and seen.labels is not None
    closing = Closing(0.0, CANDIDATES)
    if attacker.budget is not None and scored:
        closing = closing_of(view, attacker, each)
    # With the truth, the check of the searches on public examples waits: a success does not need it.
    method = attacker.attack.method
    later = method if isinstance(method, AutoLeak) and scored and attacker.budget is None else None
    left = None if attacker.budget is None else attacker.budget - spent - closing.seconds - (time.monotonic() - began)
    answer, view = _answered(view, attacker, rngs, report, store, left, later is None)
    stopped = None
    if many := int(answer.doubts.get(BUDGET, torch.zeros(0)).sum()):
        stopped = attacker.budget
        report.say(f"{WORDS[BUDGET]} ({many} of {view.victims} victims)")
    if seen.inputs is None or seen.labels is None:
        named = (view.tap, view.clock.round + 1, attacker.untried, spent + time.monotonic() - began)
        return Outcome(None, answer, -answer.certainty[:, 0], None, None, stopped, *named)
    score = Scorer(seen, seen.inputs, seen.labels, attacker, public, view, rngs, closing.candidates)
    try:
        report.tick("scores")
        rows, matched = score(answer)
        if later is not None and not rows["success"].all():
            answer = later.checked(answer, view, rngs[0])
            report.tick("scores")
            rows, matched = score(answer)
    finally:
        report.close()
    summary = tap_summary(rows, time.monotonic() - began, _setup(attacker))
    if summary["candidates"] < 2:  # Nothing is needed to pick the only one.
        summary |= dict.fromkeys(("identified", "identified_low", "identified_high"))
    named = (view.tap, view.clock.round + 1, attacker.untried, spent + time.monotonic() - began)
    return Outcome(summary, answer, -answer.certainty[:, 0], rows, matched, stopped, *named, score.left_out)


def _answered(
    view: View,
    attacker: Attacker,
    rngs: Generators,
    report: Reporter,
    store: Store | None,
    left: float | None,
    checks: bool,
) -> tuple[Reconstruction, View]:
    """Return the reconstructions of the searches, which have `left` seconds, and the view with these searches.

    Args:
        checks: Whether the attack also tries its searches on public examples.
    """
    method = attacker.attack.method
    total = sum(runs(method, number, search, (view,)) for number, search in enumerate(searches_of(method)))
    telling = _Telling(report, total)
    view = dataclasses.replace(view, searches=Searches(telling, telling.resumed, store, checks=checks))
    try:
        if left is None or attacker.budget is None:
            telling.expect(method, view)
        else:
            left = max(0.0, left)
            report.bound(left)
            method = within_seconds(method, left, view.victims, left, attacker.budget, report.note)
        answer = answered(method, (view,), rngs)
    finally:
        report.close()
    if not isinstance(answer, Reconstruction):
        raise InputError("attack: it ranks candidates and rebuilds nothing; expected one that reconstructs")
    return answer, view


class _Telling:
    """Shows the progress of the searches of an attack, and an upper bound of the time that they still take."""

    def __init__(self, reporter: Reporter, total: int) -> None:
        self.reporter, self.total = reporter, total
        self.costs: list[float] = []
        self.check = 0.0
        self.share: dict[int, float] = {}
        self.first: dict[int, tuple[float, float]] = {}

    def expect(self, method: Any, view: View) -> None:
        """Measure what each search of an attack without a budget takes at most, and print the estimate where it is long.

        Most searches converge before their last iteration, and a success needs no check on public examples.
        """
        measured = search_costs(method, (view,), time.perf_counter)
        running = [s for number, s in enumerate(searches_of(method)) if runs(method, number, s, (view,))]
        usual = sum(usual_share(search) * cost for search, cost in zip(running, measured, strict=True))
        costs = [LATE * cost for cost in measured]
        victims, twins = view.victims, min(2, getattr(method, "twins", 0))
        self.costs, self.check = costs, sum(costs) / victims * twins
        if (most := sum(costs) + self.check) > QUICK:
            many = "1 victim" if victims == 1 else f"{victims} victims"
            line = (
                f"estimated at most {minutes(most)} for {many}, usually about {minutes(usual)} ({len(costs)} searches);"
                " --budget sets a limit"
            )
            self.reporter.note(line)
        self.reporter.bound(most)

    def __call__(self, number: int, name: str, share: float) -> None:
        """Show the share of a search that is done; several threads may search at once."""
        self.share[number] = share = max(share, self.share.get(number, 0.0))
        there, check = number % max(1, self.total), number >= self.total
        if self.costs and number < 2 * self.total:
            rest = self.costs[there] * (1 - share) + sum(self.costs[there + 1 :])
            if check:  # The check runs the same searches.
                self.reporter.bound(self.check * rest / max(sum(self.costs), 1e-9))
            else:
                self.reporter.bound((rest + self.check) * self._pace(number, share))
        self.reporter(self._place(number, name), share, 1)

    def resumed(self, number: int, name: str, share: float) -> None:
        """Show where a search resumes."""
        self.reporter.begin(self._place(number, name), share, 1, f"{share:.0%}")

    def _place(self, number: int, name: str) -> str:
        place = f"search {number % max(1, self.total) + 1} of {self.total}, {name}"
        return f"{CHECK}, {place}" if number >= self.total else place

    def _pace(self, number: int, share: float) -> float:
        """Return by how much a search is faster than its trial predicts; 1 if it is not, or if too little of it is done."""
        now = time.perf_counter()
        began, before = self.first.setdefault(number, (now, share))
        if share - before < PACE or not self.costs[number]:
            return 1.0
        return min(1.0, LATE * (now - began) / (share - before) / self.costs[number])


def _setup(attacker: Attacker) -> Setup:
    """Return how an update of the user's own is attacked. It is one network, whatever its victims, as of a training."""
    aware = attacker.defense is None or attacker.attack.knows == "defense"
    strongest = is_strongest(attacker.attack)
    shortened = "" if strongest else attacker.shortened
    return Setup(STRONGEST if shortened else attacker.attack.title, strongest, aware, live=True, shortened=shortened)


def _check(attack: Attack) -> None:
    needs = attack.needs
    for need in ("labels", "logits", "candidates", "table"):
        if getattr(needs, need):
            raise InputError(f"attack: it needs {need}, which no attacker is granted here; expected one without")
    if attack.server.threat != "honest":
        raise InputError(
            "attack: its server tampers with the model, which is sent here as it is; expected an honest one"
        )
