"""Long work says how far it is: within a chunk of victims too, and without changing what it finds."""

import io
import re

import pandas as pd
import pytest
import torch

from leakbench.attack import Attack
from leakbench.attack.slots.stop import Iterations, Stop, Watched, watched
from leakbench.cell import Request, identity
from leakbench.cell.budget import prepare
from leakbench.experiment.execute import execute
from leakbench.progress import Reporter, cells_line
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


def lines_of(clock: list[float], monkeypatch, calls: list[tuple[str, float, int]], **given) -> list[str]:
    """Return the lines of a reporter whose stream is not a terminal, by a clock that is read once at each call."""
    moments = iter(clock)
    monkeypatch.setattr("leakbench.progress.time.monotonic", lambda: next(moments))
    report = Reporter(stream=io.StringIO(), **given)
    for phase, done, total in calls:
        report(phase, done, total)
    return report.stream.getvalue().splitlines()


def test_a_line_says_the_elapsed_time_and_the_time_that_is_left(monkeypatch) -> None:
    """Half a victim of two in 10 s: about 30 s are left; lines come now and then, and the last one always."""
    calls = [("attack", done, 2) for done in (0, 0.5, 0.6, 2)]
    assert lines_of([0.0, 10.0, 11.0, 40.0], monkeypatch, calls) == [
        "attack: 0 of 2",
        "attack: 0.50 of 2, 0:10 elapsed, about 0:30 left",
        "attack: 2 of 2, 0:40 elapsed",
    ]


def test_what_was_done_before_says_nothing_of_the_rate(monkeypatch) -> None:
    """A training that is resumed at 90 of 100: one round in 10 s, nine are left; the next phase has a rate of its own."""
    calls = [("train", 90, 100), ("train", 91, 100), ("attack", 0, 200), ("attack", 1, 200)]
    assert lines_of([0.0, 10.0, 100.0, 130.0], monkeypatch, calls) == [
        "train: 90 of 100",
        "train: 91 of 100, 0:10 elapsed, about 1:30 left",
        "attack: 0 of 200, 1:40 elapsed",
        "attack: 1 of 200, 2:10 elapsed, about 1:39:30 left",
    ]


def test_a_line_names_the_phase_and_the_cell(monkeypatch) -> None:
    moments = iter([0.0, 1.0])
    monkeypatch.setattr("leakbench.progress.time.monotonic", lambda: next(moments))
    report = Reporter(stream=io.StringIO(), heading="cell 3 of 12")
    report.plan(["attack type-1", "train"])
    report("attack type-1", 0, 2)
    report.heading = ""
    report("train", 0, 5)
    assert report.stream.getvalue().splitlines() == [
        "cell 3 of 12, attack type-1 (phase 1 of 2): 0 of 2",
        "train (phase 2 of 2): 0 of 5, 0:01 elapsed",
    ]


def test_an_upper_bound_never_grows(monkeypatch) -> None:
    """100 s are set at 0; a later bound of 200 s changes nothing, one of 20 s lowers the end; past it no time is promised."""
    now = [0.0]
    monkeypatch.setattr("leakbench.progress.time.monotonic", lambda: now[0])
    report = Reporter(stream=io.StringIO(), every=0.0)
    said = []
    for moment, bound in ((0.0, 100.0), (10.0, 200.0), (30.0, 20.0), (40.0, 90.0), (51.0, 60.0)):
        now[0] = moment
        report.bound(bound)
        report("search", 1, 9)
        said.append(report.stream.getvalue().splitlines()[-1].rpartition(", ")[2])
    assert said == [
        "at most 1:40 left",
        "at most 1:30 left",
        "at most 0:20 left",
        "at most 0:10 left",
        "slower than estimated",
    ]


def test_a_quiet_reporter_writes_nothing_but_what_is_said() -> None:
    report = Reporter(quiet=True, stream=Terminal())
    for done in (0, 1):
        report("attack", done, 1)
    report.note("estimated at most 0:10")
    report.close()
    assert report.stream.getvalue() == ""
    report.say("half as many")
    assert report.stream.getvalue() == "half as many\n"


def test_a_terminal_redraws_its_line_and_keeps_the_last_one() -> None:
    """A line of its own takes the place of the progress, which starts again below it; the cursor is never hidden."""
    report = Reporter(stream=Terminal())
    report("attack", 0, 2)
    report.say("half as many")
    report("attack", 2, 2)
    drawn = report.stream.getvalue()
    assert "\x1b[?25l" not in drawn
    before, _, after = drawn.partition("half as many\n")
    assert "attack: 0 of 2" in before
    assert before.endswith("\x1b[2K")
    assert "━" in after
    assert "attack: 2 of 2" in after and after.endswith("\n")


def test_a_line_on_a_terminal_is_never_wider_than_it(monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "50")
    report = Reporter(stream=Terminal())
    report("a phase of a very long name that no terminal has the columns for", 0, 2)
    report.close()
    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", report.stream.getvalue())
    assert max(len(line) for line in re.split(r"[\r\n]", shown)) <= 50
    assert "a phase of" in shown


@pytest.mark.parametrize(
    ("measured", "line"),
    [
        ([], "4 cells to measure; the time is not known before the first one is measured"),
        ([60.0, 120.0], "4 cells to measure, about 6:00 by the 2 that were measured before"),
    ],
)
def test_the_estimate_of_cells_is_by_those_that_were_measured(measured: list[float], line: str) -> None:
    assert cells_line(4, measured) == line
    assert cells_line(1, [5.0]).startswith("1 cell to measure, about 0:05")


def test_a_later_chunk_goes_on_where_the_one_before_ended(tmp_path, monkeypatch) -> None:
    """Three victims, two in the first chunk: the third's share of its iterations stands above the two who are done."""
    monkeypatch.setattr("leakbench.experiment.stage_attack._chunk", lambda *_: 2)
    told: list[float] = []
    cell = prepare(Request(**{**SMALL, "attack": "inverting_gradients", "iterations": 2}), None)
    with open_run(tmp_path, identity(cell, "test")) as run:
        execute(cell, run, lambda phase, done, _: told.append(done) if phase == "attack type-1" else None)
    assert told == [0, 1.0, 2, 2.5, 3]
