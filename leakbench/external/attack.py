"""The attack on a trace: its searches, its scores, and the run folder from which an interrupted attack resumes."""

from __future__ import annotations

import dataclasses
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from leakbench import __version__
from leakbench.attack import Attack
from leakbench.attack.clock import runs, search_costs
from leakbench.attack.doubts import BUDGET
from leakbench.attack.fit_store import FitStore, fit_folder
from leakbench.attack.isolation import answered
from leakbench.attack.methods.autoleak import CHECK, AutoLeak
from leakbench.attack.public import FEW
from leakbench.attack.slots.stop import searches_of
from leakbench.core.answers import Reconstruction
from leakbench.core.behaviour import SHARED, raised
from leakbench.core.errors import InputError
from leakbench.core.progress import Reporter, minutes
from leakbench.core.provenance import versions
from leakbench.core.recipe import describe
from leakbench.core.request import BATCH
from leakbench.core.rng import generators
from leakbench.core.types import Generators
from leakbench.data.vocabulary import Vocabulary
from leakbench.experiment.attack_time import within_seconds
from leakbench.external.assumptions import with_notes
from leakbench.external.attacker import Attacker, without_truth
from leakbench.external.certificate import certified
from leakbench.external.network import input_normals
from leakbench.external.outcome import Outcome, write_run
from leakbench.external.saved import SavedAnswer, SavedSearches, Searched, restore, states_of
from leakbench.external.scoring import LATE, Scorer, reserve, seconds_per_gradient
from leakbench.external.trace import Trace
from leakbench.federated.searches import Searches, Store, usual_share
from leakbench.federated.view import Public, View
from leakbench.measure.rates import IDENTIFIED, LABEL_RANKED, LABELS, RECOGNISED
from leakbench.report.own import OWN
from leakbench.storage.store import SCHEMA, content_hash, open_run, tensor_hash
from leakbench.storage.summary import Tap
from leakbench.summary.evidence import Setup, is_strongest
from leakbench.summary.limits import CANDIDATES
from leakbench.summary.tap import tap_summary
from leakbench.summary.verdict import STRONGEST
from leakbench.summary.warnings import WORDS

__all__ = ["QUICK", "Points", "attack_trace", "attack_traces"]

Points = Mapping[str, tuple[Trace, Attacker]]
"""{leakage point: its trace and its attacker}."""

PACE = 0.05
"""Share of a search after which its own speed predicts the rest better than its trial does."""

QUICK = 5.0
"""Predicted seconds up to which an attack prints no estimate, and seconds after which it shows its progress in a file."""

COUNTED = 0.02
"""Largest share of a budget for one pass over the public examples, which count labels and whiten images."""

OF_RECONSTRUCTIONS = ("batches", "engine", "leakage", "local steps")
"""The shared pieces on which reconstructions depend, apart from their scores."""

LEAST_PUBLIC = 16
"""Number of public examples that a budget leaves at least."""


def attack_traces(
    points: Points,
    folder: Path | None = None,
    names: Mapping[str, str] | None = None,
    command: str = "",
    reporter: Reporter | None = None,
    began: float | None = None,
) -> dict[str, Outcome]:
    """Attack each leakage point, and write the run folder if one is given.

    An interrupted attack resumes from the searches in the folder, if the update, the model and all options are the same. If its
    searches have ended, only the scores are computed, also with another truth.

    Args:
        points: {leakage point: its trace and its attacker}.
        folder: The run folder; None to write nothing.
        names: Names of the dataset, the defense and the attack on the page.
        command: The command that repeats the attack.
        reporter: Shows the progress; None makes one for each attack.
        began: Time at which a budget began, of `time.monotonic`; None for now.

    Raises:
        InputError: For a folder with other content, before anything is attacked.
    """
    if folder is None:
        return {
            tap: with_notes(attack_trace(trace, attacker, reporter, began=began), trace, attacker)
            for tap, (trace, attacker) in points.items()
        }
    say = (Reporter() if reporter is None else reporter).say
    with open_run(folder, _identity(points, names or {}, command), say=say) as run:
        found = {}
        for tap, (trace, attacker) in points.items():
            store = SavedSearches(run, tap)
            outcome = attack_trace(trace, attacker, reporter, store, store.spent, began, SavedAnswer(run, tap))
            found[tap] = with_notes(outcome, trace, attacker)
        data = next(attacker.data for _, attacker in points.values())
        words = None if data is None else data.vocabulary
        run.manifest["command"] = command
        write_run(run, list(found.values()), [trace for trace, _ in points.values()], words)
    return found


def _identity(points: Points, names: Mapping[str, str], command: str) -> dict[str, Any]:
    """Return the first content of the manifest; its hash covers everything on which the reconstructions depend."""
    attacker = next(attacker for _, attacker in points.values())
    recipes = {"attack": attacker.attack} | ({} if attacker.defense is None else {"defense": attacker.defense})
    described = {name: describe(recipe) for name, recipe in recipes.items()}
    settings = {
        "taps": {trace.tap: _settings(trace) for trace, _ in points.values()},
        "success": attacker.eta,
        "seed": attacker.seed,
    }
    settings |= {} if attacker.budget is None else {"budget": attacker.budget}
    settings |= {} if attacker.statistics == BATCH else {"statistics": attacker.statistics}
    content = {
        "schema": SCHEMA,
        "version": __version__,
        "kind": OWN,
        "names": dict(names),
        "recipes": described,
        "data": None if attacker.data is None else attacker.data.content,
        "settings": settings,
        "shown": [_hashes(trace, attacker) for trace, attacker in points.values()],
        # Those of the parts are in the recipes.
        "behaviours": raised({name: SHARED[name] for name in OF_RECONSTRUCTIONS}),
    }
    return {
        "kind": OWN,
        "hash": content_hash(content),
        "cell": dict(names),
        "seed": attacker.seed,
        "device": "cpu",
        "command": command,
        "versions": versions(),
        "recipes": described,
        "settings": settings,
    }


def _settings(trace: Trace) -> dict[str, Any]:
    how = trace.training
    return {
        "victims": len(trace.updates),
        "shape": list(trace.shape),
        "classes": trace.classes,
        "steps": how.steps,
        "batch": how.batch,
        "learning_rate": how.rate,
        "optimizer": how.optimizer,
        "mode": how.mode,
        "reads": trace.view.knowledge.reads,
        **({} if trace.heads is None else {"targets": repr(trace.heads.heads), "loss": trace.heads.name}),
    }


def _absent(summary: Tap, trace: Trace) -> tuple[str, ...]:
    """Return the fields without a value: anyone can identify the only candidate, and other targets than classes have no labels."""
    identified = IDENTIFIED.ends if summary.candidates == 1 else ()
    return identified if trace.heads is None else (*identified, LABELS.name, *LABEL_RANKED.ends)


def _public(trace: Trace, attacker: Attacker) -> Public:
    """Return the public examples; those for a network with other targets than classes have targets that say nothing."""
    heads = trace.heads
    if heads is None:
        return attacker.public(trace.shape, trace.classes)
    public = attacker.public(trace.shape, sys.maxsize)
    usual = heads.possible(heads.start(torch.zeros(heads.size)))
    return dataclasses.replace(public, answers=usual.expand(len(public.labels), -1))


def _hashes(trace: Trace, attacker: Attacker) -> list[str]:
    """Return the hashes of the updates, of the network, and of a truth that is left out of the attacker's public examples."""
    network, inputs = trace.view.network, trace.inputs
    _, removed = without_truth(_public(trace, attacker), inputs)
    truth = {"inputs": inputs} if inputs is not None and removed else {}
    solved = [tensor_hash(trace.solved)] if attacker.statistics == "inferred" else []
    modes = [name for name, module in network.model.named_modules() if module.training]
    return [
        *(tensor_hash(t) for t in (trace.view.update, network.parameters, network.statistics, truth)),
        *solved,
        content_hash([repr(network.model), modes, [repr(normal) for normal in input_normals(network.model)]]),
    ]


def attack_trace(
    trace: Trace,
    attacker: Attacker,
    reporter: Reporter | None = None,
    store: Store | None = None,
    spent: float = 0.0,
    began: float | None = None,
    saved: SavedAnswer | None = None,
) -> Outcome:
    """Attack a trace, and score the reconstructions if the truth is known.

    A budget limits everything: the preparation, the searches, and the scores, for which time is reserved.

    Args:
        trace: What was recorded.
        attacker: The attacker.
        reporter: Shows the progress; None makes one.
        store: Where searches are saved, so that an interrupted attack resumes; None saves nothing.
        spent: Seconds of the budget that earlier processes used.
        began: Time at which the budget of this process began, of `time.monotonic`; None for now.
        saved: Where the reconstructions are saved before they are scored; None saves nothing.

    Raises:
        InputError: For an attack that needs true labels, candidates or another model, which no attacker has here.
    """
    began = time.monotonic() if began is None else began
    _check(attacker.attack)
    inputs, labels, method = trace.inputs, trace.labels, attacker.attack.method
    report = Reporter(after=QUICK) if reporter is None else reporter
    view, public, reserved, candidates = _prepared(trace, attacker, report)
    rngs = generators(attacker.seed, "attack", [(view.clock.round, v) for v in range(view.victims)])
    left = None if attacker.budget is None else attacker.budget - spent - reserved - (time.monotonic() - began)
    # With the truth, the check of the searches on public examples waits: a success does not need it.
    later = method if isinstance(method, AutoLeak) and inputs is not None and attacker.budget is None else None
    earlier = None if saved is None else saved.read()
    if earlier is not None and later is None and not earlier.checked:
        earlier = None  # Without the truth, the check decides what a failure means.
    answer, view = _answered(view, attacker, rngs, report, store, left, later is None, earlier)
    if earlier is not None:
        spent, later = max(spent, earlier.seconds), None if earlier.checked else later
    elif saved is not None and view.searches is not None:
        saved.write(
            Searched(answer, later is None, view.searches.begun, states_of(rngs), spent + time.monotonic() - began)
        )
    stopped = None
    if many := int(answer.doubts.get(BUDGET, torch.zeros(0)).sum()):
        stopped = attacker.budget
        report.say(f"for {many} of {view.victims} victims, {WORDS[BUDGET]}")
    scored: dict[str, Any] = {"summary": None}
    if inputs is not None and labels is not None:
        score = Scorer(trace, inputs, labels, attacker, public, view, rngs, candidates)
        check = None if later is None else partial(later.checked, view=view, rng=rngs[0])
        answer, rows, matched = _scored(score, answer, check, report)
        summary = tap_summary(rows, time.monotonic() - began, _setup(attacker))
        summary = summary.replaced(**dict.fromkeys(_absent(summary, trace)))
        scored = {"summary": summary.as_dict(), "rows": rows, "matched": matched, "left_out": score.left_out}
    words = view.vocabulary
    return Outcome(
        **scored,
        answer=answer,
        distance=-answer.certainty[:, 0],
        budget=stopped,
        tap=view.tap,
        round=view.clock.round + 1,
        untried=attacker.untried,
        seconds=spent + time.monotonic() - began,
        sentences=() if words is None else _sentences(answer, words),
        certified=None if words is None or inputs is not None else certified(view, answer),
    )


def _prepared(trace: Trace, attacker: Attacker, report: Reporter) -> tuple[View, Public, float, int]:
    """Return the view with the public examples that the budget leaves, all public examples, and what the scores need.

    The scores need some seconds, which are reserved, and a number of candidates.
    """
    view, needs = attacker.view(trace), attacker.attack.needs
    public, _ = without_truth(_public(trace, attacker), trace.inputs)
    report.tick("preparation")
    view = dataclasses.replace(view, fits=FitStore(fit_folder()), tick=lambda step="", _=None: report.tick(step))
    most, reserved, candidates = max(FEW, needs.public), 0.0, CANDIDATES
    if attacker.budget is not None:
        each = seconds_per_gradient(view, attacker.budget)
        most = max(LEAST_PUBLIC, min(most, int(COUNTED * attacker.budget / max(each, 1e-9))))
        if trace.inputs is not None:
            reserved, candidates = reserve(view, attacker, each)
    words = None if attacker.data is None else attacker.data.vocabulary
    return dataclasses.replace(view, public=public.first(most), vocabulary=words), public, reserved, candidates


def _scored(
    score: Scorer,
    answer: Reconstruction,
    check: Callable[[Reconstruction], Reconstruction] | None,
    report: Reporter,
) -> tuple[Reconstruction, pd.DataFrame, Tensor]:
    """Return the reconstructions, their rows and their matched inputs.

    `check` adds doubts to a failure: if an example is neither a success nor recognised.
    """
    try:
        report.tick("scores")
        rows, matched = score(answer)
        leaked = rows["success"] | (rows[RECOGNISED.name] == 1 if RECOGNISED.name in rows else False)
        if check is not None and not leaked.all():
            answer = check(answer)
            report.tick("scores")
            rows, matched = score(answer)
    finally:
        report.close()
    return answer, rows, matched


def _sentences(answer: Reconstruction, words: Vocabulary) -> tuple[str, ...]:
    """Return the reconstructed sentences as texts, victim by victim."""
    every = answer.inputs.flatten(0, 1)
    return tuple(words.decode(every[every.isfinite().all(1)]))


def _answered(
    view: View,
    attacker: Attacker,
    rngs: Generators,
    report: Reporter,
    store: Store | None,
    left: float | None,
    checks: bool,
    earlier: Searched | None,
) -> tuple[Reconstruction, View]:
    """Return the reconstructions of the searches, which have `left` seconds, and the view with these searches.

    If `checks` is true, the attack also tries its searches on public examples. Reconstructions that an earlier process saved are
    not searched again.
    """
    method = attacker.attack.method
    total = sum(runs(method, number, search, (view,)) for number, search in enumerate(searches_of(method)))
    progress = _SearchProgress(report, total)
    begun = 0 if earlier is None else earlier.begun
    view = dataclasses.replace(view, searches=Searches(progress, progress.resumed, store, checks=checks, begun=begun))
    if earlier is not None:
        restore(rngs, earlier.states)
        report.note("resumed: the searches have ended")
        return earlier.answer, view
    try:
        if left is None or attacker.budget is None:
            progress.expect(method, view)
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


class _SearchProgress:
    """Shows the progress of an attack's searches, and an upper bound of the time that they still take."""

    def __init__(self, reporter: Reporter, total: int) -> None:
        self.reporter, self.total = reporter, total
        self.costs: list[float] = []
        self.check = 0.0
        self.share: dict[int, float] = {}
        self.first: dict[int, tuple[float, float]] = {}

    def expect(self, method: Any, view: View) -> None:
        """Measure how long each search of an attack without a budget takes at most, and print a long estimate.

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
            searches = "1 search" if len(costs) == 1 else f"{len(costs)} searches"
            line = (
                f"estimated at most {minutes(most)} for {many}, usually about {minutes(usual)} ({searches});"
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
    """Return the setup of an attack on an external update: one network, as of one training."""
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
