"""Limits on an attack: seconds by a clock that the test moves, and gradient evaluations, which are reproducible."""

import dataclasses
import json
import time
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from command_line import called
from torch import Tensor, nn

from leakbench.attack import Attack
from leakbench.attack.clock import Timed, WithinSeconds, begun
from leakbench.attack.doubts import BUDGET
from leakbench.attack.evaluations import most_evaluations, with_evaluations
from leakbench.attack.methods.autoleak import AutoLeak
from leakbench.attack.methods.feature_inversion import FeatureInversion
from leakbench.attack.methods.gradient_matching import GradientMatching
from leakbench.attack.methods.stage import Stage
from leakbench.attack.slots.descent import AdamDescent
from leakbench.attack.slots.start import Constant
from leakbench.attack.slots.stop import Iterations, Watched, searches_of
from leakbench.cell import Request, identity
from leakbench.cell.resolve import resolve_cell
from leakbench.core.errors import InputError
from leakbench.core.recipe import construct, resolve
from leakbench.core.rng import generators
from leakbench.core.types import Network
from leakbench.core.words import seconds
from leakbench.execute import execute
from leakbench.experiment import stage_attack
from leakbench.experiment.attack_time import AttackTime, estimate_line
from leakbench.federated.view import Public, View
from leakbench.leaderboard.asked import EVALUATIONS, CardSizes, asking, card_command
from leakbench.models import one_hot, parameters
from leakbench.storage.store import Run, open_run
from leakbench.summary.warnings import WORDS, doubts

V, SHAPE, CLASSES = 3, (1, 4, 4), 4


class Ticks:
    """A clock that moves only when the network runs."""

    def __init__(self) -> None:
        self.time = 0.0

    def __call__(self) -> float:
        return self.time


class Slow(nn.Module):
    """A network whose every forward pass takes one second on the clock."""

    def __init__(self, clock: Ticks) -> None:
        super().__init__()
        self.clock = clock
        self.hidden, self.last = nn.Linear(16, 6), nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        self.clock.time += 1.0
        answer: Tensor = self.last(self.hidden(x.flatten(1)).sigmoid())
        return answer


class SlowConvolution(Slow):
    """The same with a convolution in front of its only fully connected layer."""

    def __init__(self, clock: Ticks) -> None:
        super().__init__(clock)
        self.hidden, self.last = nn.Conv2d(1, 6, 3, padding=1), nn.Linear(96, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        self.clock.time += 1.0
        answer: Tensor = self.last(self.hidden(x).sigmoid().flatten(1))
        return answer


def slow_view(clock: Ticks, network: type[Slow] = Slow) -> View:
    """Return gradients of three random examples on the slow network, and public examples for the attack's own checks."""
    torch.manual_seed(0)
    model = network(clock).double()
    rng = torch.Generator().manual_seed(1)
    x, labels = torch.rand(V, 1, *SHAPE, generator=rng).double(), torch.tensor([[0], [1], [2]])
    public = Public(torch.rand(40, *SHAPE, generator=rng).double(), torch.arange(40) % CLASSES)
    empty = {n: p.new_zeros(V, *p.shape) for n, p in model.named_parameters()}
    blind = View("type-2", Network(model, parameters(model), engine="reference"), empty, 1, SHAPE, CLASSES, 0.1)
    blind = dataclasses.replace(blind, public=public, labels=labels)
    update = blind.respond(x, one_hot(labels, CLASSES).double())
    clock.time = 0.0
    return dataclasses.replace(blind, update=update)


def search(limit: int, descent: Any = "adam", **changed: Any) -> GradientMatching:
    fields = {"labels": "last_layer", "start": "normal", "distance": "squared_l2", "descent": descent}
    return construct(GradientMatching, {**fields, "stop": {"iterations": {"limit": limit}}, **changed})


def rngs() -> tuple[torch.Generator, ...]:
    return generators(0, "attack", [(v,) for v in range(V)])


def unsaid(most: float, least: float, more: int) -> None:
    pass


def test_a_search_stopped_by_the_clock_keeps_its_best_and_reports_it() -> None:
    """A search that is stopped early equals one with a smaller limit, with a doubt for each victim."""
    clock = Ticks()
    view = slow_view(clock)
    found = WithinSeconds(search(10_000), 30.0, unsaid, clock)((view,), rngs())
    assert clock.time <= 30
    steps = int(found.steps[0])
    assert 5 < steps < 30
    assert found.doubts[BUDGET].all()
    short = search(steps, {"adam": {"milestones": ()}})((slow_view(Ticks()),), rngs())
    same = WithinSeconds(search(10_000, {"adam": {"milestones": ()}}), 30.0, unsaid, clock)((slow_view(clock),), rngs())
    torch.testing.assert_close(same.inputs, short.inputs)
    assert same.inputs.isfinite().all()


def test_a_search_that_ends_in_time_is_the_same_without_a_doubt() -> None:
    clock = Ticks()
    found = WithinSeconds(search(5), 1000.0, unsaid, clock)((slow_view(clock),), rngs())
    free = search(5)((slow_view(Ticks()),), rngs())
    torch.testing.assert_close(found.inputs, free.inputs)
    assert not found.doubts[BUDGET].any()
    assert BUDGET not in free.doubts


def test_every_search_takes_one_iteration_however_late_it_is() -> None:
    clock = Ticks()
    found = WithinSeconds(search(50), 1e-6, unsaid, clock)((slow_view(clock),), rngs())
    assert found.steps.tolist() == [1] * V
    assert found.inputs.isfinite().all()


def test_a_stage_that_would_begin_after_the_end_is_skipped() -> None:
    """Without time, the cheapest search takes its one iteration and the others none; every victim is marked."""
    clock = Ticks()
    found = WithinSeconds(worst_case(50, 60, 70), 1e-6, unsaid, clock)((slow_view(clock),), rngs())
    assert found.steps.tolist() == [1] * V
    assert found.inputs.isfinite().all()
    assert found.doubts[BUDGET].all()


JUDGED = 4
"""Ticks in which an ensemble judges the reconstructions of its stages; the clock does not stop this."""


def worst_case(*limits: int) -> AutoLeak:
    """Return an ensemble of searches that reconstruct nothing in so few iterations."""
    return AutoLeak(tuple(Stage(search(limit, start={"constant": {"value": 0.5}})) for limit in limits), broken=1e-25)


@pytest.mark.slow
def test_stages_run_in_order_of_cost_and_leave_unused_time_to_the_others() -> None:
    """40 cheap iterations and 4,000: the order in the recipe does not matter, and both share the time."""
    for limits in ((4000, 40), (40, 4000)):
        clock = Ticks()
        view = slow_view(clock)
        found = WithinSeconds(worst_case(*limits), 160.0, unsaid, clock)((view,), rngs())
        assert clock.time <= 160 + JUDGED
        # The cheap search ended by itself; the other one had all of the remaining time, not half.
        assert found.snapshots[39] == 40
        assert int(found.steps[0]) - 40 > 80
        assert found.doubts[BUDGET].any()


def test_an_ensemble_without_time_for_its_checks_reports_the_budget() -> None:
    clock = Ticks()
    found = WithinSeconds(worst_case(4000, 4000), 60.0, unsaid, clock)((slow_view(clock),), rngs())
    assert clock.time <= 60 + JUDGED
    assert found.doubts[BUDGET].all()
    assert "unconverged" not in found.doubts
    free = worst_case(3, 3)((slow_view(Ticks()),), rngs())
    assert not free.doubts[BUDGET].any()
    assert free.doubts["unconverged"].all()


def test_the_prediction_is_the_measured_speed_times_the_most_evaluations() -> None:
    """One evaluation takes one tick for all victims together, a third of a tick for each."""
    clock, told = Ticks(), list[tuple[float, ...]]()
    WithinSeconds(worst_case(40, 20), 1000.0, lambda *each: told.append(each), clock)((slow_view(clock),), rngs())
    assert told == [pytest.approx(((41 + 21) / V, (2 + 2) / V, 3))]


def test_the_share_of_a_search_is_the_remaining_time_over_the_remaining_stages() -> None:
    now = iter([10.0, 24.9, 25.1, 26.0])
    stop = Timed(Iterations(limit=100), lambda: next(now), 40.0, later=1).begin()
    assert stop.ends == 25.0
    assert not stop(1, torch.zeros(2)).any()
    assert stop(2, torch.zeros(2)).all()
    assert stop(5, torch.zeros(2)).all()  # Another chunk of the victims, which is stopped later.
    assert stop.cut == 2


def test_a_search_ends_where_another_iteration_of_all_its_victims_would_be_late() -> None:
    times = iter([9.0, 9.1, 9.1])
    stop = Timed(Iterations(limit=100), lambda: next(times), 15.0, each=3.0)
    assert not stop(1, torch.zeros(2)).any()
    assert stop(2, torch.zeros(2)).all()
    assert not stop(3, torch.zeros(1)).any()


def test_a_stop_and_its_watcher_share_the_start_of_the_share() -> None:
    watched = Watched(Timed(Iterations(limit=100), lambda: 10.0, 40.0, later=1), lambda share: None)
    begins = begun(watched)
    assert (begins.tell, begins.stop.ends) == (watched.tell, 25.0)


@pytest.mark.parametrize("sharpness", [None, (1.0, 10.0)])
def test_a_feature_inversion_has_its_share_and_reports_the_clock(
    sharpness: tuple[float, float] | None,
) -> None:
    clock = Ticks()
    view = slow_view(clock, SlowConvolution)
    stop = Timed(Iterations(limit=10_000), clock, 60.0, later=1)
    inversion = FeatureInversion(start=Constant(value=0.5), descent=AdamDescent(), sharpness=sharpness)
    found = dataclasses.replace(inversion, stop=stop)((view,), rngs())
    assert 25 <= clock.time <= 35
    assert found.doubts[BUDGET].all()


@pytest.mark.parametrize(("limit", "takes", "each"), [(100.0, 6.0, 3.0), (1000.0, 6.0, 1.0), (100.0, 0.0, 1e-9)])
def test_the_speed_of_a_search_that_settles_at_once_is_that_of_its_two_evaluations(
    limit: float, takes: float, each: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A trial of one victim takes `takes` seconds. If 3 x 3 evaluations are less than a tenth of the limit, all three victims
    are tried together. One evaluation of three restarts and of their last points are 3 x 2. The clock also ends a search
    within an iteration."""
    clock, trials, timed = Ticks(), [], []

    def settles(method: GradientMatching, views: Any, rngs: Any) -> None:
        (timed if isinstance(method.stop, Timed) else trials).append(method)
        clock.time += 0 if isinstance(method.stop, Timed) else takes

    view = slow_view(clock)
    monkeypatch.setattr(GradientMatching, "__call__", settles)
    WithinSeconds(search(50, "lbfgs", restarts=3), limit, unsaid, clock)((view,), rngs())
    assert [method.stop.each for method in timed] == [pytest.approx(each * 3 * 2)]
    assert all((method.restarts, method.descent.inner) == (1, 1) for method in trials)


def test_a_stage_that_does_not_apply_takes_no_time() -> None:
    clock, told = Ticks(), list[float]()
    inversion = FeatureInversion(start=Constant(value=0.5), descent=AdamDescent(), stop=Iterations(limit=10))
    noisy = dataclasses.replace(slow_view(clock, SlowConvolution), noise=0.1)
    method = AutoLeak((Stage(search(5)), Stage(inversion)))
    WithinSeconds(method, 1000.0, lambda each, least, more: told.append(each), clock)((noisy,), rngs())
    assert told == [pytest.approx(6 / V)]


def test_the_estimate_of_a_leakage_point_is_one_line() -> None:
    assert (
        estimate_line(15.38, 0.1, 10, 3, 60.0, 60.0)
        == "estimated at most 3:20 for 10 victims; --budget 60 stops it at 1:00"
    )
    assert (
        estimate_line(1.0, 0.1, 1, 0, 30.0, 60.0) == "estimated at most 0:01 for 1 victim; --budget 60 leaves it 0:30"
    )
    assert (
        estimate_line(15.38, 0.9, 10, 3, 2.0, 3.0)
        == "estimated at most 3:20 for 10 victims; --budget 3 stops it at 0:02, "
        "but one iteration of every search takes 0:09"
    )


def test_a_search_that_the_budget_stopped_is_a_warning_also_where_it_succeeded() -> None:
    """Other doubts of an attack concern only its failures."""
    rows = pd.DataFrame({"victim": [0, 1, 2], "member": 0, "success": [True, True, False]})
    rows["doubts"] = ["stuck; budget", "", "stuck; budget"]
    assert doubts(rows) == {BUDGET: 2, "stuck": 1}


def test_leakage_points_share_the_time_by_their_victims_and_a_resumed_run_has_what_is_left(tmp_path: Path) -> None:
    manifest = {"phases": {"prepare": 50.0, "attack type-2": 20.0}}
    left = AttackTime(100.0, Run(tmp_path, manifest), 30)
    assert left.share(10) == pytest.approx(80 / 3)
    left.done(10)
    manifest["phases"]["attack type-2"] = 90.0
    assert left.share(10) == pytest.approx(5.0)
    left.done(10)
    assert left.share(10) == pytest.approx(10.0)
    manifest["phases"]["attack type-1"] = 30.0
    assert left.share(10) == 0.0


@pytest.mark.parametrize(
    ("rankings", "end"),
    [
        (0.5, "stops it at 0:20"),
        (5.0, "stops it at 0:20; the rankings, which it does not stop, take about 0:05"),
        (30.0, "stops it at 0:20; the rankings, which it does not stop, take about 0:30, which is more"),
    ],
)
def test_an_estimate_includes_the_rankings(rankings: float, end: str) -> None:
    assert estimate_line(100.0, 0.1, 10, 0, 20.0, 20.0, rankings).endswith(end)


@pytest.mark.slow
def test_rankings_come_before_the_searches_and_count_in_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their numbers equal those of a run without a limit; a ranking that takes long leaves the searches one iteration."""
    cell = resolve_cell(Request(attack="cpl", **SMALL), None)
    limited = dataclasses.replace(cell, settings=dataclasses.replace(cell.settings, budget=2.0))
    lines: list[str] = []
    original = stage_attack.likelihoods

    def slow(*given: Any) -> Any:
        time.sleep(2.5)
        return original(*given)

    monkeypatch.setattr(stage_attack, "likelihoods", slow)
    monkeypatch.setattr(stage_attack, "saying", lambda progress: lines.append)
    rows = []
    for some, name in ((cell, "free"), (limited, "limited")):
        with open_run(tmp_path / name, identity(some, "")) as run:
            execute(some, run, lambda *_: None)
            rows.append(run.read_rows("rows.parquet"))
    free, cut = rows
    columns = ["victim", "identified_by_likelihood", "label_ranked"]
    pd.testing.assert_frame_equal(free[columns], cut[columns])
    assert set(cut["iterations"]) == {1} and min(free["iterations"]) > 1
    assert any("the rankings, which it does not stop, take about" in line for line in lines)


def test_the_progress_of_a_limited_attack_is_at_least_the_share_of_its_time(tmp_path: Path) -> None:
    """Half of the time of one leakage point has passed after 20 of 40 seconds; a search that is late has not ended."""
    now = iter([20.0, 60.0])
    limited = AttackTime(120.0, Run(tmp_path, {"phases": {}}), 30, lambda: next(now))
    assert [limited.passed(10, 0.0), limited.passed(10, 0.0)] == [0.5, 0.99]
    assert AttackTime(None, Run(tmp_path, {"phases": {}}), 30).passed(10, 0.0) == 0.0


@pytest.mark.parametrize("most", [44, 100, 1000, 3000, 10_000])
def test_evaluations_are_an_upper_limit_that_the_searches_share(most: int) -> None:
    """Cheap searches need less than their share, and the others get the rest; nothing is left while a search could use it."""
    method = AutoLeak(
        (Stage(search(1200)), Stage(search(30, "lbfgs")), Stage(search(100, "lbfgs")), Stage(search(2, restarts=3)))
    )
    if most == 44:
        with pytest.raises(
            InputError, match=r"^evaluations: got 44, expected at least 50, which one iteration of each"
        ):
            with_evaluations(method, most, nn.Linear(4, 2), (4,))
        return
    each = [most_evaluations(s) for s in searches_of(with_evaluations(method, most, nn.Linear(4, 2), (4,)))]
    needs = [most_evaluations(s) for s in searches_of(method)]
    assert sum(each) <= most
    assert each == needs or sum(each) > most - 25
    unmet = [got for got, need in zip(each, needs, strict=True) if got < need]
    assert not unmet or max(unmet) - min(unmet) <= 25


def test_the_evaluations_of_a_victim_stay_below_the_limit_and_do_not_depend_on_the_others() -> None:
    view = slow_view(Ticks())
    method = with_evaluations(worst_case(500, 700), 60, view.network.model, SHAPE)
    together = method((view,), rngs())
    assert int(together.evaluations.max()) <= 60
    assert int(together.evaluations.min()) > 55
    alone = method((view.of(torch.tensor([1])),), (rngs()[1],))
    torch.testing.assert_close(alone.inputs[0], together.inputs[1])


def test_stages_that_do_not_run_on_a_network_take_no_share() -> None:
    """On a network without kinks, the catalog's ensemble has two searches of twenty evaluations an iteration."""
    method = resolve("attacks", Attack, "autoleak")[1].method
    smooth = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Sigmoid(), nn.Flatten(), nn.Linear(8, 3))
    searches = searches_of(with_evaluations(method, 2000, smooth, (1, 4, 4)))
    runs = [stage.runs_on(smooth, (1, 4, 4)) and hasattr(stage.method, "stop") for stage in method.stages]
    taken = [most_evaluations(search) for search, does in zip(searches, runs, strict=True) if does]
    assert 2000 - 25 * len(taken) < sum(taken) <= 2000
    others = zip(searches, searches_of(method), runs, strict=True)
    assert all(new == old for new, old, does in others if not does)
    assert not all(runs)


SMALL = {"dataset": "digits", "train_rounds": 0, "taps": ("type-2",), "victims": 2, "candidates": 10}


def test_only_limits_that_are_set_enter_the_identity() -> None:
    def hashed(**limits: Any) -> str:
        return resolve_cell(Request(attack="cpl", **SMALL, **limits), None).hash

    plain = hashed()
    assert hashed(budget=None, evaluations=None) == plain
    assert (
        len({plain, hashed(budget=60.0), hashed(budget=120.0), hashed(evaluations=500), hashed(evaluations=900)}) == 5
    )
    assert hashed(evaluations=10**9) == plain
    # 24 iterations of 20 evaluations, and the last point.
    assert resolve_cell(Request(attack="cpl", **SMALL, evaluations=500), None).attack.method.stop.limit == 24  # type: ignore[union-attr]


@pytest.mark.parametrize("text", ["0", "-5", "abc", "nan", "inf", "", "0s", "1e999", "2m3", "5 minutes"])
def test_a_budget_that_is_not_a_duration_is_refused_in_one_line(
    text: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = called(monkeypatch, capsys, "run", "--budget", text)
    assert (code, out) == (2, "")
    assert err.splitlines() == [
        f"leakbench: budget: got {text!r}, expected a number of seconds above 0, as 60, 60s, 2m or 1h"
    ]
    with pytest.raises(InputError, match=r"^budget: got"):
        seconds("budget", text)


def test_seconds_minutes_and_hours_are_read() -> None:
    assert [seconds("budget", text) for text in ("60", "60s", "2m", "1.5h", ".5", None)] == [
        60,
        60,
        120,
        5400,
        0.5,
        None,
    ]


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ({"budget": float("nan")}, "budget: got nan, expected a number of seconds above 0"),
        ({"budget": -5.0}, "budget: got -5, expected a number of seconds above 0"),
        ({"evaluations": 0}, "evaluations: got 0, expected at least 1"),
        ({"evaluations": 20}, "evaluations: got 20, expected at least 21"),
        ({"evaluations": 500, "attack": "lmmse"}, "evaluations: got 500, but the attack does not search"),
    ],
)
def test_an_impossible_limit_is_refused_in_one_line(limits: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as error:
        resolve_cell(Request(**{"attack": "cpl", **SMALL, **limits}), None)
    assert str(error.value).startswith(message)


def test_a_run_with_a_budget_keeps_partial_results_with_a_note_and_marked_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A budget of one millisecond: one iteration for every victim, a warning, a note and the limit in the manifest."""
    out = tmp_path / "run"
    small = "run --dataset digits --train-rounds 0 --taps type-2 --victims 2 --candidates 10"
    arguments = f"{small} --attack inverting_gradients --budget 0.001"
    code, _, err = called(monkeypatch, capsys, *arguments.split(), "--out", str(out))
    assert code == 0
    assert "attack type-2: estimated at most" in err
    assert "--budget 0.001 stops it at 0:00" in err
    manifest = json.loads((out / "manifest.json").read_text())
    assert manifest["settings"]["budget"] == 0.001
    assert manifest["summary"]["taps"]["type-2"]["failures"] == 0
    assert manifest["summary"]["warnings"] == [f"type-2: for 2 of 2 victims, {WORDS[BUDGET]}"]
    assert "--evaluations is the limit that repeats" in manifest["summary"]["notes"]["budget"]


def test_an_interrupted_run_keeps_its_chunks_and_has_only_the_time_that_is_left(tmp_path: Path) -> None:
    """The first leakage point ended in time; by the manifest, the whole budget was spent before the second one."""
    asked = {**SMALL, "taps": ("type-2", "type-1"), "leak_batch": 2, "iterations": 3, "networks": 1}
    cell = resolve_cell(Request(attack="cpl", budget=1000.0, **asked), None)

    def interrupted(phase: str, done: float, total: int | None) -> None:
        if phase == "attack type-1":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), open_run(tmp_path / "run", identity(cell, "")) as run:
        execute(cell, run, interrupted)
    with open_run(tmp_path / "run", identity(cell, "")) as run:
        before = run.read_rows("parts/type-2.round0.00000.parquet")
        run.add_seconds("attack type-2", 1000.0)
        execute(cell, run, lambda *_: None)
        rows = run.read_rows("rows.parquet")
    kept = rows[rows["tap"] == "type-2"].reset_index(drop=True)
    pd.testing.assert_frame_equal(kept[before.columns], before)
    assert not kept["doubts"].str.contains(BUDGET).any()
    assert (rows.loc[rows["tap"] == "type-1", "doubts"] == BUDGET).all()
    assert (rows.loc[rows["tap"] == "type-1", "iterations"] == 1).all()


def test_a_card_limits_evaluations_unless_it_names_another_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The card requests the measured cell; an attack without a search gets no limit."""
    made: list[CardSizes] = []

    def stopped(asked: CardSizes, *_: Any) -> None:
        made.append(asked)
        raise InputError("stopped")

    monkeypatch.setattr("leakbench.leaderboard.make.make_card", stopped)
    for options in ((), ("--iterations", "20"), ("--evaluations", "500"), ("--attack", "lmmse")):
        called(monkeypatch, capsys, "card", "sign", "digits", *options)
    assert [(asked.iterations, asked.evaluations) for asked in made] == [
        (None, EVALUATIONS),
        (20, None),
        (None, 500),
        (None, None),
    ]
    assert f"--evaluations {EVALUATIONS}" in card_command(made[0], "sign", "digits", "autoleak")
    cells = asking(dataclasses.replace(made[2], protocols=("paper",)), "sign", "digits", "cpl", None)
    assert all("--evaluations 500" in each.command and each.cell.attack.method.stop.limit == 24 for each in cells)  # type: ignore[union-attr]
