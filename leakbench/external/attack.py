"""The attack on what leaked from a program of somebody's, and its scores: the one place where such leaks meet the attacks."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from leakbench import __version__
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
from leakbench.external.assumptions import assumed, with_notes
from leakbench.external.attacker import Attacker, told, without_truth
from leakbench.external.network import normals
from leakbench.external.outcome import Outcome, Row, numbers
from leakbench.external.scoring import LATE, Closing, Scorer, closing_of, seconds_per_gradient
from leakbench.external.trace import Seen
from leakbench.federated.view import View
from leakbench.fit_store import FitStore, fit_folder
from leakbench.progress import Reporter, minutes
from leakbench.provenance import versions
from leakbench.recipe import describe
from leakbench.report.own import OWN, own_report_into
from leakbench.rng import generators
from leakbench.store import SCHEMA, Run, content_hash, open_run, tensor_hash
from leakbench.summary.evidence import Setup, is_strongest
from leakbench.summary.limits import CANDIDATES
from leakbench.summary.tap import tap_summary
from leakbench.summary.verdict import STRONGEST
from leakbench.summary.warnings import WORDS
from leakbench.types import Generators

__all__ = ["QUICK", "attack_seen", "attacked_into"]


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


def _identity(points: Sequence[tuple[Seen, Attacker]], names: Mapping[str, str], command: str) -> dict[str, Any]:
    """Return what the manifest says from the start; its hash is of all that the answers depend on.

    Args:
        names: Of the dataset, the defense and the attack.
        command: That repeats it.
    """
    attacker = points[0][1]
    recipes = {"attack": attacker.attack} | ({} if attacker.defense is None else {"defense": attacker.defense})
    settings = {
        "taps": {seen.view.tap: _how(seen) for seen, _ in points},
        "success": attacker.eta,
        "seed": attacker.seed,
    } | ({} if attacker.budget is None else {"budget": attacker.budget})
    content = {
        "schema": SCHEMA,
        "version": __version__,
        "kind": OWN,
        "names": dict(names),
        "recipes": {name: describe(recipe) for name, recipe in recipes.items()},
        "data": None if attacker.data is None else attacker.data.content,
        "settings": settings,
        "shown": [_shown(seen) for seen, _ in points],
    }
    return {
        "kind": OWN,
        "hash": content_hash(content),
        "cell": dict(names),
        "seed": attacker.seed,
        "device": "cpu",
        "command": command,
        "versions": versions(),
        "recipes": content["recipes"],
        "settings": settings,
    }


def attacked_into(
    folder: Path,
    points: Mapping[str, tuple[Seen, Attacker]],
    names: Mapping[str, str],
    command: str,
    note: str = "",
    reporter: Reporter | None = None,
    began: float | None = None,
) -> dict[str, Outcome]:
    """Attack {leakage point: what is seen there, by whom}, write the folder, and return what came of each.

    An attack that was interrupted resumes from the searches in the folder, if the update, the model and all options are the same.

    Args:
        note: What to say on the page beside what is assumed, a sentence a line. Raises InputError for a folder that holds
            something else, before anything is attacked.
        reporter: Shows the progress; None makes one.
        began: When a budget began, by `time.monotonic`; None for now.
    """
    each = list(points.values())
    with open_run(folder, _identity(each, names, command)) as run:
        found = {}
        for tap, (seen, attacker) in points.items():
            # A finished attack that is run again starts over: its folder keeps no searches.
            store = None if run.manifest["complete"] else _Kept(run, tap)
            spent = 0.0 if store is None else store.spent
            notes = note or "\n".join(assumed(seen, attacker, True))
            outcome = attack_seen(seen, attacker, reporter, store, spent, began)
            found[tap] = with_notes(outcome, seen, attacker, notes)
        rows = [
            Row(
                tap,
                1,
                found[tap],
                seen.view.victims,
                seen.view.examples,
                "\n".join(filter(None, [found[tap].assumptions, found[tap].note])),
            )
            for tap, (seen, _) in points.items()
        ]
        _write(run, rows, [seen for seen, _ in each])
    return found


@dataclass
class _Kept:
    """The searches of one leakage point, as files in `parts/` of a run's folder, and the seconds that they took."""

    run: Run
    tap: str
    _since: float = field(default_factory=time.perf_counter)
    _one: threading.Lock = field(default_factory=threading.Lock)

    @property
    def spent(self) -> float:
        """Seconds until the last save, of this process and of earlier ones."""
        return float(self.run.manifest["phases"].get(self._phase, 0.0))

    @property
    def _phase(self) -> str:
        return f"attack {self.tap}"

    def read(self, name: str) -> dict[str, Tensor] | None:
        """Return the tensors; None if they are missing or damaged."""
        path = f"parts/{self.tap}.{name}.safetensors"
        with self._one:
            return self.run.read_tensors(path) if self.run.has(path) else None

    def write(self, name: str, tensors: dict[str, Tensor]) -> None:
        """Keep tensors in place of earlier ones of the same name; searches on several threads wait for each other."""
        with self._one:
            now = time.perf_counter()
            self.run.add_seconds(self._phase, now - self._since)
            self._since = now
            self.run.write_tensors(f"parts/{self.tap}.{name}.safetensors", tensors)


def _how(seen: Seen) -> dict[str, Any]:
    view = seen.view
    return {
        "victims": view.victims,
        "shape": list(view.shape),
        "classes": view.classes,
        **{k: v for k, v in dataclasses.asdict(seen.training).items() if k != "note"},
        "reads": view.knowledge.reads,
    }


def _shown(seen: Seen) -> list[str]:
    """Return the hashes of what leaked, of the network, and of the truth, which a score depends on."""
    network = seen.view.network
    truth = {} if seen.inputs is None or seen.labels is None else {"inputs": seen.inputs, "labels": seen.labels}
    modes = [name for name, module in network.model.named_modules() if module.training]
    return [
        *(tensor_hash(t) for t in (seen.view.update, network.parameters, network.statistics, truth)),
        content_hash([repr(network.model), modes, [repr(normal) for normal in normals(network.model)]]),
    ]


def _write(run: Run, rows: Sequence[Row], points: Sequence[Seen]) -> Path:
    """Write rows.parquet where anything was scored, reconstructions.safetensors, and report.html; return the page's path.

    Args:
        rows: What came of each leakage point, whose note holds a sentence a line. reconstructions.safetensors:
            `<tap>.round1.reconstruction` (V, M, *s), in the order of `.truth` where there is one, and `.labels` (V, M), the
            attacker's.
    """
    tensors: dict[str, Tensor] = {}
    scored: list[pd.DataFrame] = []
    for row, seen in zip(rows, points, strict=True):
        if row.outcome is None:
            continue
        key = f"{row.tap}.round{row.round}"
        found = row.outcome
        tensors[f"{key}.labels"] = found.answer.labels
        tensors[f"{key}.reconstruction"] = found.answer.inputs if found.matched is None else found.matched
        if found.rows is not None and seen.inputs is not None:
            tensors[f"{key}.truth"] = seen.inputs.float()
            scored.append(found.rows.assign(verdict=(found.summary or {}).get("verdict")))
    if scored:
        run.write_rows("rows.parquet", pd.concat(scored, ignore_index=True))
    run.write_tensors("reconstructions.safetensors", tensors)
    run.manifest["summary"] = {
        "cell": run.manifest["cell"],
        "taps": {row.tap: row.outcome.summary for row in rows if row.outcome and row.outcome.summary},
        "notes": {f"{row.tap}.{n}": line for row in rows for n, line in enumerate(row.note.split("\n")) if line},
        "distance": {row.tap: numbers(row.outcome.distance) for row in rows if row.outcome},
    }
    run.manifest["complete"] = True
    run.save()
    run.forget("parts/")
    return own_report_into(run)
