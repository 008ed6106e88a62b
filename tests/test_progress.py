"""Long work says how far it is: within a chunk of victims too, and without changing what it finds."""

import io

import pandas as pd
import pytest
import torch

from leakbench.attack import Attack
from leakbench.attack.slots.stop import Iterations, Stop, Watched, watched
from leakbench.cell import Request, identity
from leakbench.cell.budget import prepare
from leakbench.experiment.execute import execute
from leakbench.progress import Reporter
from leakbench.recipe import resolve
from leakbench.store import open_run

SMALL = {
    "attack": "cpl",
    "dataset": "digits",
    "taps": ("type-1",),
    "victims": 3,
    "networks": 1,
    "candidates": 9,
    "train_rounds": 0,
    "iterations": 8,
}


class Terminal(io.StringIO):
    """A stream that says that it is a terminal."""

    def isatty(self) -> bool:
        return True


def test_a_run_tells_how_far_a_search_is(tmp_path) -> None:
    """Three victims side by side at one tap: their count only grows, by eighths of three within the chunk, and ends at three."""
    told: list[tuple[str, float, int | None]] = []
    cell = prepare(Request(**SMALL), None)
    with open_run(tmp_path, identity(cell, "test")) as run:
        execute(cell, run, lambda *said: told.append(said))
    done = [count for phase, count, _ in told if phase == "attack type-1"]
    assert {total for phase, _, total in told if phase == "attack type-1"} == {3}
    assert (done[0], done[-1]) == (0, 3)
    assert done == sorted(done)
    assert set(done) <= {3 * n / 8 for n in range(9)}
    most = int(pd.read_parquet(tmp_path / "rows.parquet")["iterations"].max())
    assert {3 * n / 8 for n in range(1, min(most, 7) + 1)} <= set(done)


def test_the_twins_of_autoleak_do_not_begin_anew(tmp_path) -> None:
    """The same searches on public examples are no progress of the victims: their count never falls."""
    told: list[float] = []
    cell = prepare(Request(**{**SMALL, "attack": "autoleak", "taps": ("type-2",), "defense": "noise_gaussian"}), None)
    with open_run(tmp_path, identity(cell, "test")) as run:
        execute(cell, run, lambda phase, count, total: told.append(count) if phase == "attack type-2" else None)
    assert told == sorted(told)
    assert 0 < told[1] < 3


def test_a_watched_stop_decides_as_before() -> None:
    """The same limit and the same victims who end; the last iteration is told by who asked for the search."""
    told: list[float] = []
    plain = Iterations(limit=4)
    stop = Watched(plain, told.append)
    values = torch.tensor([1.0, torch.nan])
    for iteration in range(1, 5):
        assert torch.equal(stop(iteration, values), plain(iteration, values))
    assert (stop.limit, told) == (4, [0.25, 0.5, 0.75])
    assert isinstance(stop, Stop)


def test_stages_follow_each_other_and_what_has_no_iterations_is_left_alone() -> None:
    """Of n stages each is one n-th; a closed form tells nothing."""
    told: list[float] = []
    method = watched(resolve("attacks", Attack, "autoleak")[1].method, told.append)
    stages = [stage.method for stage in method.stages]
    searches = [n for n, stage in enumerate(stages) if hasattr(stage, "stop")]
    assert len(searches) > 1
    for n in searches:
        stop = stages[n].stop
        stop(1, torch.ones(1))
        assert told.pop() == pytest.approx((n + 1 / stop.limit) / len(stages))
    assert watched(method, None) == resolve("attacks", Attack, "autoleak")[1].method
    closed = resolve("attacks", Attack, "analytic_fc")[1].method
    assert watched(closed, told.append) is closed


def test_a_line_says_the_pace_and_the_time_that_is_left(monkeypatch) -> None:
    """Half a victim of two in 10 s: 20 s each, 30 s left; lines come now and then, and the last one always."""
    clock = iter([0.0, 10.0, 11.0, 40.0])
    monkeypatch.setattr("leakbench.progress.time.monotonic", lambda: next(clock))
    report = Reporter(stream=io.StringIO())
    for done in (0, 0.5, 0.6, 2):
        report("attack", done, 2)
    assert report.stream.getvalue().splitlines() == [
        "attack: 0 of 2",
        "attack: 0.50 of 2, 20.00 s each, 0:30 left",
        "attack: 2 of 2, 20.00 s each, 0:00 left",
    ]


def test_what_was_done_before_says_nothing_of_the_pace(monkeypatch) -> None:
    """A training that goes on at 90 of 100: one round in 10 s is 10 s each, and nine are left; the next phase begins anew."""
    clock = iter([0.0, 10.0, 100.0, 130.0])
    monkeypatch.setattr("leakbench.progress.time.monotonic", lambda: next(clock))
    report = Reporter(stream=io.StringIO())
    for phase, done, total in (("train", 90, 100), ("train", 91, 100), ("attack", 0, 200), ("attack", 1, 200)):
        report(phase, done, total)
    assert report.stream.getvalue().splitlines() == [
        "train: 90 of 100",
        "train: 91 of 100, 10.00 s each, 1:30 left",
        "attack: 0 of 200",
        "attack: 1 of 200, 30.00 s each, 1:39:30 left",
    ]


def test_a_quiet_reporter_writes_nothing() -> None:
    report = Reporter(quiet=True, stream=Terminal())
    for done in (0, 1):
        report("attack", done, 1)
    report.close()
    assert report.stream.getvalue() == ""


@pytest.mark.parametrize(("quiet", "before"), [(False, "attack: 0 of 2\x1b[K\r\n"), (True, "")])
def test_a_line_that_is_no_progress_stands_by_itself_and_is_said_to_the_quiet_too(quiet: bool, before: str) -> None:
    report = Reporter(quiet=quiet, stream=Terminal())
    report("attack", 0, 2)
    report.say("half as many")
    assert report.stream.getvalue() == f"{before}half as many\n"


def test_a_later_chunk_goes_on_where_the_one_before_ended(tmp_path, monkeypatch) -> None:
    """Three victims, two in the first chunk: the third's share of its iterations stands above the two who are done."""
    monkeypatch.setattr("leakbench.experiment.stage_attack._chunk", lambda *_: 2)
    told: list[float] = []
    cell = prepare(Request(**{**SMALL, "attack": "inverting_gradients", "iterations": 2}), None)
    with open_run(tmp_path, identity(cell, "test")) as run:
        execute(cell, run, lambda phase, done, _: told.append(done) if phase == "attack type-1" else None)
    assert told == [0, 1.0, 2, 2.5, 3]


def test_a_terminal_is_rewritten_ten_times_a_second_at_most(monkeypatch) -> None:
    clock = iter([0.0, 0.05, 0.2, 0.21])
    monkeypatch.setattr("leakbench.progress.time.monotonic", lambda: next(clock))
    report = Reporter(stream=Terminal())
    for done in (0, 0.1, 0.5, 1):
        report("attack", done, 1)
    assert [line.split(",")[0].split("\x1b")[0] for line in report.stream.getvalue().split("\r")[:-1]] == [
        "attack: 0 of 1", "attack: 0.50 of 1", "attack: 1 of 1",
    ]  # fmt: skip
