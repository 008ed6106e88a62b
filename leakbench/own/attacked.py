"""The attack on what leaked from a program of somebody's, and its scores: the one place where such leaks meet the attacks."""

from __future__ import annotations

import copy
import dataclasses
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from leakbench.answers import Ranking, Reconstruction
from leakbench.attack import Attack
from leakbench.attack.clock import runs, search_costs
from leakbench.attack.doubts import BUDGET
from leakbench.attack.evaluations import with_evaluations
from leakbench.attack.isolation import answered
from leakbench.attack.methods.autoleak import AutoLeak
from leakbench.attack.null.pictures import null_attack
from leakbench.attack.public import FEW
from leakbench.attack.rankings.candidates import Candidates
from leakbench.attack.rankings.reconstructed import CALIBRATION, by_both
from leakbench.attack.searches import Searches, Store, usual_share
from leakbench.attack.slots.stop import searches_of
from leakbench.data.dataset import Dataset
from leakbench.data.recipe import Federation
from leakbench.defense import Defense, Probe
from leakbench.defense.facts import facts_at
from leakbench.errors import InputError
from leakbench.experiment.attack_time import within_seconds
from leakbench.experiment.leak_noise import noise_std
from leakbench.federated.view import Public, View
from leakbench.fit_store import FitStore, fit_folder
from leakbench.leakage_points import point_name
from leakbench.measure.metrics import success_threshold
from leakbench.measure.recognised import gallery_of, score_recognised
from leakbench.measure.scores import Truth, score
from leakbench.measure.scores_rankings import score_ways
from leakbench.models import one_hot
from leakbench.own.overlap import without_truth
from leakbench.own.seen import Seen
from leakbench.own.table import Row, as_html, as_text
from leakbench.progress import Reporter, minutes
from leakbench.rng import generator, generators
from leakbench.summary.evidence import Setup, is_strongest
from leakbench.summary.tap import tap_summary
from leakbench.summary.verdict import STRONGEST
from leakbench.summary.warnings import WORDS
from leakbench.types import Generators

__all__ = ["QUICK", "Attacker", "Outcome", "attack_seen", "told", "with_limit"]

PACE = 0.05
"""Share of a search after which its speed is known better than by its trial."""

LEAKS = ("reconstructs", "identifies")
"""Verdicts that say that an update leaks."""

QUICK = 5.0
"""Predicted seconds up to which an attack prints no estimate, and seconds after which it shows its progress in a file."""

LATE = 1.25
"""By how much a search may be slower than the trial that predicts it."""

CANDIDATES = 1000
"""Number of candidates for identification where a dataset is named."""

RANKED = 0.1
"""Largest share of a budget for the gradients of the candidates."""

COUNTED = 0.02
"""Largest share of a budget for one pass over the public examples, by which labels are counted and pictures whitened."""

LEAST_PUBLIC = 16
"""Number of public examples that a budget leaves at least."""

TIMINGS = 6
"""Number of gradients whose least time predicts the others."""

TIMED = 0.01
"""Largest share of a budget for these, after the first one."""

JUDGED = 6
"""Gradients of each reconstruction that are computed after the last search, to choose it and to score it."""

MADE_UP = 256
"""How many pictures stand for public ones where no data set is named."""

SUCCESS = 0.1
"""The threshold of success where no data set says what is close, an RMSE of inputs in [0, 1]."""


@dataclass(frozen=True)
class Attacker:
    """Who attacks.

    attack: the recipe.  defense: the recipe that was applied to the updates, as the attacker is told it; None: it
    is told of none.  data: whose public examples it has, by which success is calibrated too; None: made-up pictures.
    success: the threshold, an RMSE; None: the data set's, else `SUCCESS`.  seed: of all that it draws.
    evaluations: the most gradient evaluations of each victim, see `with_limit`.  budget: the most seconds of the attack; None: no
    limit.  untried: what might find more than this attacker, for a reader whose update does not leak to it.
    shortened: the option that gives `autoleak` less work than it has in the catalog, with its value; empty for none.
    """

    attack: Attack
    defense: Defense | None = None
    data: Dataset | None = None
    success: float | None = None
    seed: int = 0
    evaluations: int | None = None
    budget: float | None = None
    untried: tuple[str, ...] = ()
    shortened: str = ""

    @property
    def eta(self) -> float:
        """The threshold of success."""
        if self.success is not None or self.data is None:
            return SUCCESS if self.success is None else self.success
        return success_threshold(self.data.train_inputs[self.data.victims], generator(self.seed, "eta"))

    def public(self, shape: tuple[int, ...], classes: int) -> Public:
        """Return the public examples; raises InputError for a data set of another shape or fewer classes."""
        rng = generator(self.seed, "public")
        if self.data is None:
            return Public(_made_up(shape, rng), torch.arange(MADE_UP) % classes)
        if self.data.shape != shape or self.data.classes > classes:
            raise InputError(
                f"dataset: {self.data.name!r} has inputs of {self.data.shape} and {self.data.classes} classes, the app"
                f" {shape} and {classes}"
            )
        chosen = torch.randperm(len(self.data.public_targets), generator=rng)
        return Public(self.data.public_inputs[chosen], self.data.public_targets[chosen])


@dataclass(frozen=True, repr=False)
class Outcome:
    """What an attack on V clients answered: summary as of a leakage point of `leakbench run`, None where no truth is known.

    answer: its examples.  distance: (V,), the attacker's own, lower is surer.  rows: one for each example, as of a run;
    matched: its inputs (V, M, *s) in the order of the truth; None where no truth is known.
    budget: the limit in seconds that stopped searches; None where none was stopped.  seconds: what the attack took, its
    preparation and its scores among them.  left_out: that a budget reduced the number of candidates; empty where it did not.
    assumptions: what the attack assumes, a sentence a line.  warnings: the lines among them that change how the result is read.
    tap, round: the leakage point, and the round in which it leaked, counted from 1.  untried: what might find more.

    `print` prints what `leakbench attack` prints; a notebook shows the same as a table.
    """

    summary: Mapping[str, Any] | None
    answer: Reconstruction
    distance: Tensor
    rows: pd.DataFrame | None = None
    matched: Tensor | None = None
    budget: float | None = None
    tap: str = "type-1"
    round: int = 1
    untried: tuple[str, ...] = ()
    seconds: float = 0.0
    left_out: str = ""
    assumptions: str = ""
    warnings: tuple[str, ...] = ()

    @property
    def verdict(self) -> str | None:
        """The verdict, as of a run; None where no truth is known."""
        return None if self.summary is None else str(self.summary["verdict"])

    def __str__(self) -> str:
        """Return what `leakbench attack` prints of these reconstructions."""
        return as_text([self._row])

    def __repr__(self) -> str:
        return f"<Outcome at the {point_name(self.tap)}: {self.verdict or 'not scored'}>"

    def _repr_html_(self) -> str:
        """Return the verdict and the table for a notebook."""
        return as_html([self._row])

    @property
    def _row(self) -> Row:
        victims, examples = self.answer.inputs.shape[:2]
        note = "\n".join(filter(None, [self.assumptions, self.note]))
        return Row(self.tap, self.round, self, victims, examples, note, self.warnings)

    @property
    def searches(self) -> tuple[str, ...]:
        """The name of the search that found each of the V reconstructions; () for a method that is not made of several."""
        stage, names = self.answer.stage, self.answer.stages
        return () if stage is None else tuple("none" if n < 0 else names[n] for n in stage.tolist())

    @property
    def note(self) -> str:
        """Lines that say which searches found the reconstructions, and whether a budget stopped searches; empty for neither."""
        return "\n".join(filter(None, [self.by_search, self.by_budget]))

    @property
    def by_search(self) -> str:
        """How many reconstructions each search found; empty for a method that is not made of several."""
        counts = Counter(self.searches).most_common()
        if len(counts) < 2:
            return f"all reconstructions are from the search {counts[0][0]}" if counts else ""
        return f"reconstructions by search: {', '.join(f'{many} from {name}' for name, many in counts)}"

    @property
    def by_budget(self) -> str:
        """Lines that say what a budget stopped or left out; empty where nothing."""
        return "\n".join(filter(None, [self._stopped, self._not_begun, self.left_out]))

    @property
    def _stopped(self) -> str:
        if self.budget is None:
            return ""
        limit = f"the budget of {self.budget:g} s ({self.seconds:.1f} s taken)"
        if self.summary is not None and self.summary["verdict"] not in LEAKS:
            return f"no leak found with {limit}, which is not evidence that the update does not leak"
        return f"{limit} stopped searches; a longer attack may reconstruct more"

    @property
    def _not_begun(self) -> str:
        names = dict.fromkeys(self.answer.not_begun)
        return f"not begun within the budget: {', '.join(names)}" if names else ""


def with_limit(attacker: Attacker, seen: Seen) -> Attacker:
    """Return the attacker whose searches share `attacker.evaluations` on the network that leaked; raises InputError for too few."""
    if attacker.evaluations is None:
        return attacker
    view = seen.view
    method = with_evaluations(attacker.attack.method, attacker.evaluations, view.network.model, view.shape)
    return dataclasses.replace(attacker, attack=dataclasses.replace(attacker.attack, method=method))


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

    reporter: shows the progress; None makes one.  store: where searches are kept, so that an interrupted attack resumes; None
    keeps nothing.  spent: seconds of the budget that earlier processes used.  began: when the budget of this process began, by
    `time.monotonic`; None for now.

    Raises InputError for an attack that needs what nobody can be granted here: true labels, candidates, another model.
    """
    began = time.monotonic() if began is None else began
    _check(attacker.attack)
    view, needs = told(seen, attacker), attacker.attack.needs
    public, _ = without_truth(attacker.public(view.shape, view.classes), seen.inputs)
    view, each = dataclasses.replace(view, fits=FitStore(fit_folder())), 0.0
    most = max(FEW, needs.public)
    if attacker.budget is not None:
        each = _seconds_per_gradient(view, TIMED * attacker.budget)
        most = max(LEAST_PUBLIC, min(most, int(COUNTED * attacker.budget / max(each, 1e-9))))
    view = dataclasses.replace(view, public=_first(public, most))
    rngs = generators(attacker.seed, "attack", [(seen.view.clock.round, v) for v in range(view.victims)])
    report = Reporter(after=QUICK) if reporter is None else reporter
    scored = seen.inputs is not None and seen.labels is not None
    closing = Closing(0.0, CANDIDATES)
    if attacker.budget is not None and scored:
        closing = _closing(view, attacker, each)
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
    judge = _Judge(seen, seen.inputs, seen.labels, attacker, public, view, rngs, closing.candidates)
    rows, matched = judge(answer)
    if later is not None and not rows["success"].all():
        try:
            answer = later.checked(answer, view, rngs[0])
        finally:
            report.close()
        rows, matched = judge(answer)
    summary = tap_summary(rows, time.monotonic() - began, _setup(attacker))
    if summary["candidates"] < 2:  # Nothing is needed to pick the only one.
        summary |= dict.fromkeys(("identified", "identified_low", "identified_high"))
    named = (view.tap, view.clock.round + 1, attacker.untried, spent + time.monotonic() - began)
    return Outcome(summary, answer, -answer.certainty[:, 0], rows, matched, stopped, *named, _left_out(judge))


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

    checks: whether the attack also tries its searches on public examples.
    """
    method = attacker.attack.method
    total = sum(runs(method, number, search, (view,)) for number, search in enumerate(searches_of(method)))
    telling = _Telling(report, total)
    view = dataclasses.replace(view, searches=Searches(telling, store, checks=checks))
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


@dataclass(frozen=True)
class Closing:
    """What comes after the searches of an attack with a budget: the seconds that it takes, and the number of candidates."""

    seconds: float
    candidates: int


def _seconds_per_gradient(view: View, most: float) -> float:
    """Return the seconds that one victim's gradient takes: the least of several, since the first one also prepares."""
    alone = view.of(torch.zeros(1, dtype=torch.int64))
    like = next(iter(view.update.values()))
    inputs = torch.full((1, view.examples, *view.shape), 0.5).to(like)
    labels = one_hot(torch.zeros(1, view.examples, dtype=torch.int64), view.classes).to(like)
    taken = list[float]()
    while len(taken) < TIMINGS and sum(taken[1:]) < most:
        began = time.perf_counter()
        with torch.no_grad():
            alone.respond(inputs, labels)
        taken.append(time.perf_counter() - began)
    return min(taken)


def _closing(view: View, attacker: Attacker, each: float) -> Closing:
    """Return the time to reserve for judging and scoring the reconstructions; each: seconds of one gradient of the network.

    There are so many candidates for identification that their gradients take at most the share `RANKED` of the budget.
    """
    budget = attacker.budget or 0.0
    most = view.victims if attacker.data is None else CANDIDATES
    many = max(view.victims, min(most, int(RANKED * budget / max(each, 1e-9))))
    # The candidates of a batch are compared by the gradients of public examples.
    learned = FEW if view.examples > 1 else 0
    judged = JUDGED * view.victims * view.examples
    seconds = LATE * each * (judged + many + learned) + 0.02 * budget
    return Closing(min(0.5 * budget, seconds), many)


@dataclass(frozen=True)
class _Judge:
    """Scores the reconstructions of what was seen, where the truth is known: inputs (V, M, *s) and labels (V, M).

    view: what the attacker was shown, with its public examples and fits.  candidates: the most candidates for identification.
    """

    seen: Seen
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
        null = null_attack(
            public.inputs, public.labels, len(labels), labels, attacker.eta, generator(attacker.seed, "null")
        )
        shown, own = self._shown
        truth = Truth(victims, inputs.float(), known, torch.zeros_like(known), own)
        likelihood = self._likelihood
        ranked = {"identified": likelihood}
        ranked |= by_both((self._informed,), likelihood, shown, public.inputs[:CALIBRATION], answer)
        rows, matched = score(
            view.tap, view.clock.round + 1, answer, ranked, null, truth, attacker.eta, "no weights were given"
        )
        gallery = None if attacker.data is None else gallery_of(attacker.data, attacker.seed)
        # Which training examples they are is unknown; pictures that equal a victim's are left out of the gallery by themselves.
        strangers = dataclasses.replace(truth, examples=torch.full_like(known, -1))
        rows = rows.join(score_ways(ranked, truth)).join(score_recognised(matched, strangers, null, gallery))
        return rows, matched

    @cached_property
    def _informed(self) -> View:
        """The view of an attacker that knows the defense, as in every run, whatever the attack knows."""
        informed = _aware(self.seen, self.attacker.defense)
        return dataclasses.replace(informed, public=self.view.public, fits=self.view.fits)

    @cached_property
    def _shown(self) -> tuple[Public, Tensor]:
        """The candidates, and which of them each victim's first example is (V,)."""
        return _candidates(self.inputs, self.labels, self.public, self.attacker, self.candidates)

    @cached_property
    def _likelihood(self) -> Ranking:
        """The scores of the candidates, which do not depend on the reconstructions."""
        alone = dataclasses.replace(_of_one(self._informed), candidates=self._shown[0])
        return Candidates()((alone,), self.rngs)


def _left_out(judge: _Judge) -> str:
    """Return that a budget reduced the number of candidates for identification; empty where it did not."""
    known = 0 if judge.attacker.data is None else len(judge.public.labels)
    whole = max(judge.view.victims, min(CANDIDATES, judge.view.victims + known))
    if judge.candidates >= whole:
        return ""
    return f"identification among {judge.candidates} of {whole} candidates because of the budget"


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
        place = f"search {there + 1} of {self.total}, {name}"
        self.reporter(f"check on public examples, {place}" if check else place, share, 1)

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


def told(seen: Seen, attacker: Attacker) -> View:
    """Return the view of an attacker who knows what the clients do to their updates, if its recipe has it know."""
    return seen.view if attacker.attack.knows == "oblivious" else _aware(seen, attacker.defense)


def _aware(seen: Seen, defense: Defense | None) -> View:
    """Return the view of an attacker who knows the defense's recipe, where there is one."""
    view = seen.view
    if defense is None:
        return view
    how = seen.training
    federation = Federation(
        rounds=view.clock.round + 1,
        batch=how.batch,
        examples_per_client=how.batch,
        clients=1,
        clients_per_round=1,
        local_iterations=how.steps,
        learning_rate=how.learning_rate,
    )
    done = facts_at(defense, Probe(view.network, view.shape, view.classes, federation), view.clock)
    std = noise_std(done, view.tap, how.batch, 1, how.steps, how.learning_rate, how.optimizer)
    drawn = any("noise" in fact.kind for station in done.values() for fact in station)
    noise, unknown = (None, std if drawn else "") if isinstance(std, str) else (std, "")
    known = dataclasses.replace(view.knowledge, defense=True)
    return dataclasses.replace(view, stations=defense.stations, noise=noise, unknown=unknown, knowledge=known)


def _candidates(inputs: Tensor, labels: Tensor, public: Public, attacker: Attacker, most: int) -> tuple[Public, Tensor]:
    """Return k candidates and which of them each victim's is (V,).

    They are all victims' first examples and, of a dataset, public ones, `most` in all.
    """
    few = _first(public, 0 if attacker.data is None else max(0, most - len(inputs)))
    pool = torch.cat([inputs[:, 0], few.inputs])
    order = torch.randperm(len(pool), generator=generator(attacker.seed, "candidates"))
    shown = Public(pool[order], torch.cat([labels[:, 0], few.labels])[order])
    return shown, order.argsort()[: len(inputs)]


def _of_one(view: View) -> View:
    """Return the view with a network that takes one example alone: by running statistics where its own have no variance."""
    try:
        with torch.no_grad():
            copy.deepcopy(view.network.model)(torch.zeros(1, *view.shape))
    except InputError:
        model = copy.deepcopy(view.network.model).eval()
        return dataclasses.replace(view, network=dataclasses.replace(view.network, model=model))
    return view


def _first(public: Public, most: int) -> Public:
    return Public(public.inputs[:most], public.labels[:most])


def _made_up(shape: tuple[int, ...], rng: torch.Generator) -> Tensor:
    """Return pictures (n, C, H, W) with the 1 / f amplitudes of natural ones, or uniform records (n, F), in [0, 1]."""
    noise = torch.randn(MADE_UP, *shape, generator=rng)
    if len(shape) != 3:
        return torch.rand(MADE_UP, *shape, generator=rng)
    rows, columns = torch.meshgrid(torch.fft.fftfreq(shape[1]), torch.fft.rfftfreq(shape[2]), indexing="ij")
    away = (rows**2 + columns**2).sqrt().clamp_min(1 / max(shape[1:]))
    smooth = torch.fft.irfft2(torch.fft.rfft2(noise) / away, s=shape[1:])
    spread = smooth.flatten(1).std(1).reshape(-1, 1, 1, 1)
    pictures: Tensor = (0.5 + 0.25 * smooth / spread).clamp(0, 1)
    return pictures
