"""Long work reports its progress, also within a chunk of victims, without changing its result."""

import io
import itertools
import re
from collections.abc import Iterable

import pandas as pd
import pytest
import torch

from leakbench.attack import Attack
from leakbench.attack.slots.stop import Iterations, Stop, Watched, watched
from leakbench.cell import Request, identity
from leakbench.cell.budget import prepare
from leakbench.core.progress import Reporter, cells_line, minutes
from leakbench.core.recipe import resolve
from leakbench.execute import execute
from leakbench.storage.store import open_run

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
    """A stream that claims to be a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.mark.slow
def test_a_run_reports_the_progress_of_a_search(tmp_path) -> None:
    """Three victims at once at one leakage point.

    Their count only grows, by eighths of three within the chunk, and ends at three.
    """
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


@pytest.mark.slow
def test_checks_on_public_examples_do_not_restart_the_count(tmp_path) -> None:
    """Searches on public examples are not progress of the victims: the count never falls."""
    told: list[float] = []
    cell = prepare(Request(**{**SMALL, "attack": "autoleak", "taps": ("type-2",), "defense": "noise_gaussian"}), None)
    with open_run(tmp_path, identity(cell, "test")) as run:
        execute(cell, run, lambda phase, count, total: told.append(count) if phase == "attack type-2" else None)
    assert told == sorted(told)
    assert 0 < told[1] < 3


def test_a_watched_stop_does_not_change_the_limit() -> None:
    """The same limit and the same finished victims; the caller of the search reports the last iteration."""
    told: list[float] = []
    plain = Iterations(limit=4)
    stop = Watched(plain, told.append)
    values = torch.tensor([1.0, torch.nan])
    for iteration in range(1, 5):
        assert torch.equal(stop(iteration, values), plain(iteration, values))
    assert (stop.limit, told) == (4, [0.25, 0.5, 0.75])
    assert isinstance(stop, Stop)


def test_stages_share_the_progress_and_closed_forms_report_none() -> None:
    """Each of n stages is one n-th; a closed form reports nothing."""
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


def lines_of(clock: Iterable[float], monkeypatch, calls: list[tuple[str, float, int]], **given) -> list[str]:
    """Return the lines of a reporter without a terminal, by a clock that is read once at each call."""
    moments = iter(clock)
    monkeypatch.setattr("leakbench.core.progress.time.monotonic", lambda: next(moments))
    report = Reporter(stream=io.StringIO(), **given)
    for phase, done, total in calls:
        report(phase, done, total)
    return report.stream.getvalue().splitlines()


def test_a_line_shows_the_elapsed_and_the_remaining_time(monkeypatch) -> None:
    """Half a victim of two in 10 s, twice: about 20 s are left; lines appear now and then, and always for the last one."""
    calls = [("attack", done, 2) for done in (0, 0.5, 1.0, 1.1, 2)]
    assert lines_of([0.0, 10.0, 20.0, 21.0, 40.0], monkeypatch, calls) == [
        "attack: 0 of 2",
        "attack: 0 of 2, 0:10 elapsed",
        "attack: 1 of 2, 0:20 elapsed, about 0:20 left",
        "attack: 2 of 2, 0:40 elapsed",
    ]


def test_the_time_of_a_phase_of_one_of_several_cells_is_called_so(monkeypatch) -> None:
    calls = [("train", done, 4) for done in (0, 1, 2)]
    lines = lines_of([0.0, 10.0, 20.0], monkeypatch, calls, heading="cell 1 of 2")
    assert lines[-1] == "cell 1 of 2, train: 2 of 4, 0:20 elapsed, about 0:20 left in this phase"


def test_resumed_work_does_not_count_in_the_rate(monkeypatch) -> None:
    """A training that resumes at 90 of 100: two rounds in 20 s, eight are left; the next phase has its own rate."""
    calls = [("train", done, 100) for done in (90, 91, 92)] + [("attack", done, 200) for done in (0, 1, 10, 20)]
    assert lines_of([0.0, 10.0, 20.0, 100.0, 130.0, 400.0, 700.0], monkeypatch, calls) == [
        "train: 90 of 100",
        "train: 91 of 100, 0:10 elapsed",
        "train: 92 of 100, 0:20 elapsed, about 1:20 left",
        "attack: 0 of 200, 1:40 elapsed",
        "attack: 1 of 200, 2:10 elapsed",
        "attack: 10 of 200, 6:40 elapsed",
        "attack: 20 of 200, 11:40 elapsed, about 1:30:00 left",
    ]


def test_a_line_names_the_phase_and_the_cell(monkeypatch) -> None:
    moments = iter([0.0, 1.0])
    monkeypatch.setattr("leakbench.core.progress.time.monotonic", lambda: next(moments))
    report = Reporter(stream=io.StringIO(), heading="cell 3 of 12")
    report.plan(["attack type-1", "train"])
    report("attack type-1", 0, 2)
    report.heading = ""
    report("train", 0, 5)
    assert report.stream.getvalue().splitlines() == [
        "cell 3 of 12, attack type-1 (phase 1 of 2): 0 of 2",
        "train (phase 2 of 2): 0 of 5, 0:01 elapsed",
    ]


class Now:
    """A clock that is set by hand."""

    def __init__(self, monkeypatch) -> None:
        self.seconds = 0.0
        monkeypatch.setattr("leakbench.core.progress.time.monotonic", lambda: self.seconds)


class Dated(io.StringIO):
    """A stream that records when each line was written."""

    def __init__(self, now: Now) -> None:
        super().__init__()
        self.now = now
        self.times: list[float] = []

    def write(self, text: str) -> int:
        self.times.append(self.now.seconds)
        return super().write(text)


def left_in(line: str) -> int | None:
    """Return the seconds of "about m:ss left"; None if a line has no estimate."""
    found = re.search(r"about (\d+):(\d\d) left", line)
    return None if found is None else 60 * int(found[1]) + int(found[2])


def test_an_estimate_of_the_time_left_never_grows(monkeypatch) -> None:
    """Items of 5 to 20 s: the slowest item so far counts, so a slow item later does not raise the estimate."""
    now = Now(monkeypatch)
    report = Reporter(stream=io.StringIO(), every=10.0)
    for done, seconds in enumerate([0, 20, 10, 5, 5, 12, 5, 20, 5, 18, 10, 10]):
        now.seconds += seconds
        report("train", done, 20)
    left = [found for line in report.stream.getvalue().splitlines() if (found := left_in(line)) is not None]
    assert left[0] == 18 * 20
    assert len(left) > 4
    assert left == sorted(left, reverse=True)


def test_an_estimate_that_was_too_small_is_replaced(monkeypatch) -> None:
    """Two items in 10 s each, then one of 1000 s: the new estimate is that of 340 s an item, and counts down.

    Another item of 1000 s raises it to 505 s an item, the mean of the last four. The next phase has its own.
    """
    now = Now(monkeypatch)
    report = Reporter(stream=io.StringIO(), every=10.0)
    report.plan(["attack", "train"])
    for phase in ("attack", "train"):
        for done, seconds in enumerate([0, 10, 10, 1000, 10, 1000] if phase == "attack" else [0, 10, 10]):
            now.seconds += seconds
            report(phase, done, 10)
    ends = [line.partition(" elapsed, ")[2] for line in report.stream.getvalue().splitlines()]
    assert ends == [
        *["", ""],
        "about 1:20 left in this phase",
        f"slower than estimated, about {minutes(7 * 340)} left in this phase",
        f"slower than estimated, about {minutes(7 * 340 - 10)} left in this phase",
        f"slower than estimated, about {minutes(5 * 505)} left in this phase",
        *["", ""],
        "about 1:20 left",
    ]


def test_a_phase_that_makes_up_for_its_delay_is_not_slower_than_estimated(monkeypatch) -> None:
    """Two items in 10 s each, one of 60 s, then items of 1 s: the printed end at 100 s is kept after all."""
    now = Now(monkeypatch)
    report = Reporter(stream=io.StringIO(), every=1.0)
    for done, seconds in enumerate([0, 10, 10, 60, *[1] * 6]):
        now.seconds += seconds
        report("train", done, 10)
    ends = [line.partition(" elapsed, ")[2] for line in report.stream.getvalue().splitlines()]
    assert ends[2] == "about 1:20 left"
    assert ends[3].startswith("slower than estimated, about ")
    late = [end.startswith("slower") for end in ends[3:]]
    assert late == sorted(late, reverse=True)
    assert not late[-1] and now.seconds + left_in(ends[-1]) <= 100


def test_some_seconds_more_are_not_a_delay(monkeypatch) -> None:
    """Items of 10 s, then one of 15 s or of 25 s, with lines every 10 s: only the second one is a delay."""
    for seconds, late in ((15, False), (25, True)):
        now = Now(monkeypatch)
        report = Reporter(stream=io.StringIO(), every=10.0)
        for done, each in enumerate([0, 10, 10, seconds]):
            now.seconds += each
            report("train", done, 4)
        assert ("slower than estimated" in report.stream.getvalue()) == late


def test_a_pause_of_the_machine_is_forgotten(monkeypatch) -> None:
    """One item of an hour among twenty of 10 s: five items later, the estimate is by 10 s an item again."""
    now = Now(monkeypatch)
    report = Reporter(stream=io.StringIO(), every=10.0)
    for done, seconds in enumerate([0, 10, 3600, *[10] * 5]):
        now.seconds += seconds
        report("train", done, 20)
    lines = report.stream.getvalue().splitlines()
    assert lines[2].endswith("about 18:00:00 left")
    assert left_in(lines[-1]) == 13 * 10


def test_a_count_that_returns_to_its_start_ends_no_run(monkeypatch) -> None:
    """A later step of a search may count from the start again; then nothing is known about its rate."""
    moments = iter([0.0, 10.0, 20.0, 30.0, 40.0])
    monkeypatch.setattr("leakbench.core.progress.time.monotonic", lambda: next(moments))
    report = Reporter(stream=io.StringIO())
    for done in (0, 0.5, 1.0):
        report("attack", done, 2)
    assert "left" in report.stream.getvalue().splitlines()[-1]
    report.tick("next step", 0.0)
    assert report.stream.getvalue().splitlines()[-1].startswith("attack: 0 of 2")


def test_the_next_cell_may_begin_with_the_phase_that_ended_the_last_one(monkeypatch) -> None:
    """In a card, a cell ends with its training, and the cell of the live protocol begins with it."""
    moments = (0.0, 10.0, 20.0, 40.0, 100.0, 110.0, 120.0)
    calls = [("train", done, 2) for done in (0, 0.5, 1.0, 2, 0, 0.5, 1.0)]
    lines = lines_of(moments, monkeypatch, calls)
    assert "left" in lines[2] and "left" in lines[-1]
    assert lines[4].startswith("train: 0 of 2") and "left" not in lines[4] + lines[5]


def test_an_estimate_that_was_never_printed_may_grow(monkeypatch) -> None:
    """Two items in 10 s each and then one of 100 s, with the first line after 60 s: it has a new estimate."""
    now = Now(monkeypatch)
    report = Reporter(stream=io.StringIO(), every=10.0, after=60.0)
    for done, seconds in enumerate([0, 10, 10, 100, 10]):
        now.seconds += seconds
        report("attack", done, 10)
    assert report.stream.getvalue().splitlines() == [
        "attack: 3 of 10, 2:00 elapsed, about 11:40 left",
        "attack: 4 of 10, 2:10 elapsed, about 10:00 left",
    ]


def test_a_bound_that_was_never_printed_is_replaced_by_the_next_one(monkeypatch) -> None:
    now = Now(monkeypatch)
    report = Reporter(stream=io.StringIO(), every=10.0)
    report.bound(5.0)
    for moment, bound in ((20.0, None), (40.0, 30.0), (80.0, 60.0)):
        now.seconds = moment
        if bound is not None:
            report.bound(bound)
        report("attack", 0.3, 2)
    assert report.stream.getvalue().splitlines() == [
        "attack: 0 of 2, 0:20 elapsed",
        "attack: 0 of 2, 0:40 elapsed, at most 0:30 left",
        "attack: 0 of 2, 1:20 elapsed, slower than estimated",
    ]


def test_the_end_of_bounded_work_is_not_slower_than_estimated(monkeypatch) -> None:
    """A search that ends early has nothing left, so that its bound is the present moment."""
    now = Now(monkeypatch)
    report = Reporter(stream=io.StringIO(), every=10.0)
    report.bound(60.0)
    now.seconds = 20.0
    report("search", 1, 2)
    report.bound(0.0)
    now.seconds = 20.1
    report("search", 2, 2)
    assert report.stream.getvalue().splitlines() == [
        "search: 1 of 2, 0:20 elapsed, at most 0:40 left",
        "search: 2 of 2, 0:20 elapsed",
    ]


def test_ticks_show_the_step_and_its_time_while_the_count_does_not_move(monkeypatch) -> None:
    """A tick a second for 25 s within one chunk: a line every 10 s. The next count ends the step."""
    now = Now(monkeypatch)
    report = Reporter(stream=io.StringIO(), every=10.0)
    report("attack", 1, 3)
    for second in range(1, 26):
        now.seconds = float(second)
        report.tick("check on public examples" if second == 5 else "", None if second < 20 else 1.5)
    now.seconds = 40.0
    report("attack", 2, 3)
    assert report.stream.getvalue().splitlines() == [
        "attack: 1 of 3",
        "attack: 1 of 3, check on public examples for 0:05, 0:10 elapsed",
        "attack: 1 of 3, check on public examples for 0:15, 0:20 elapsed",
        "attack: 2 of 3, 0:40 elapsed, about 0:40 left",
    ]


def test_a_step_between_phases_has_a_line_once_it_takes_long(monkeypatch) -> None:
    """No line for 9 s of preparation; the count of an ended phase is not repeated; a quiet reporter shows nothing."""
    now = Now(monkeypatch)
    report, quiet = Reporter(stream=io.StringIO()), Reporter(stream=io.StringIO(), quiet=True)
    for moment, step in ((0.0, "preparation"), (9.0, ""), (11.0, "")):
        now.seconds = moment
        report.tick(step)
        quiet.tick(step)
    report("train", 5, 5)
    for moment, step in ((12.0, "bounds"), (30.0, ""), (31.0, "")):
        now.seconds = moment
        report.tick(step)
    assert report.stream.getvalue().splitlines() == [
        "preparation for 0:11, 0:11 elapsed",
        "train: 5 of 5, 0:11 elapsed",
        "bounds for 0:18, 0:30 elapsed",
    ]
    assert quiet.stream.getvalue() == ""


def test_a_terminal_erases_the_line_of_a_step_between_phases() -> None:
    """The line of a phase stays; a tick without a step starts no line."""
    report = Reporter(stream=Terminal())
    report.tick()
    assert report.stream.getvalue() == ""
    report("train", 5, 5)
    report.tick("bounds")
    report.close()
    shown = report.stream.getvalue()
    assert "train: 5 of 5" in shown
    assert "bounds for 0:00" in shown
    assert shown.endswith("\x1b[2K")


@pytest.mark.slow
def test_a_search_shows_that_it_runs_at_least_every_20_seconds(tmp_path, monkeypatch) -> None:
    """Each gradient takes 4 s: also within an iteration of L-BFGS, with up to 20 of them, and in the check.

    Where an evaluation is recorded, it is computed twice. The layer that answers takes four gradients of its own.
    """
    now, grad = Now(monkeypatch), torch.autograd.grad

    def slow(*given, **named):
        now.seconds += 4.0
        return grad(*given, **named)

    monkeypatch.setattr("torch.autograd.grad", slow)
    report = Reporter(stream=Dated(now))
    cell = prepare(Request(**{**SMALL, "attack": "autoleak", "taps": ("type-2",), "defense": "noise_gaussian"}), None)
    with open_run(tmp_path, identity(cell, "test")) as run:
        execute(cell, run, report)
    times = report.stream.times
    assert times[-1] > 200.0
    assert max(later - earlier for earlier, later in itertools.pairwise(times)) <= 20.0
    assert re.search(r"check on public examples for \d", report.stream.getvalue())


def test_a_resumed_phase_reports_its_place(monkeypatch) -> None:
    """Only its first line names the place; a new phase and a complete one do not."""
    now = Now(monkeypatch)
    report = Reporter(stream=io.StringIO())
    report.begin("attack", 4, 10, "victim 5")
    now.seconds = 20.0
    report("attack", 4.5, 10)
    report.begin("train", 0, 5, "round 1")
    report.begin("again", 5, 5, "round 6")
    assert report.stream.getvalue().splitlines() == [
        "attack: 4 of 10, resumed at victim 5",
        "attack: 4 of 10, 0:20 elapsed",
        "train: 0 of 5, 0:20 elapsed",
        "again: 5 of 5, 0:20 elapsed",
    ]


@pytest.mark.slow
@pytest.mark.parametrize("networks", [1, 3])
def test_an_interrupted_run_reports_the_victim_at_which_it_resumes(tmp_path, monkeypatch, networks: int) -> None:
    """Chunks of one victim, interrupted within the third: two are finished, with one network or with three."""
    monkeypatch.setattr("leakbench.experiment.stage_attack._chunk", lambda *_: 1)
    cell = prepare(Request(**{**SMALL, "networks": networks}), None)

    def interrupting(phase: str, done: float, total: int | None) -> None:
        if phase == "attack type-1" and done > 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), open_run(tmp_path, identity(cell, "test")) as run:
        execute(cell, run, interrupting)
    report = Reporter(stream=io.StringIO())
    with open_run(tmp_path, identity(cell, "test")) as run:
        execute(cell, run, report)
    first, *others = report.stream.getvalue().splitlines()
    assert first.partition(", ")[0] == "attack type-1 (phase 1 of 2): 2 of 3"
    assert "resumed at victim 3" in first
    assert not any("resumed" in line for line in others)


def test_an_upper_bound_never_grows(monkeypatch) -> None:
    """100 s are set at 0. A later bound of 200 s changes nothing, one of 20 s lowers the end. After the end, no estimate."""
    now = [0.0]
    monkeypatch.setattr("leakbench.core.progress.time.monotonic", lambda: now[0])
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


def test_a_quiet_reporter_writes_only_messages() -> None:
    report = Reporter(quiet=True, stream=Terminal())
    for done in (0, 1):
        report("attack", done, 1)
    report.note("estimated at most 0:10")
    report.close()
    assert report.stream.getvalue() == ""
    report.say("half as many")
    assert report.stream.getvalue() == "half as many\n"


def test_a_terminal_redraws_its_line_and_keeps_the_last_one(monkeypatch) -> None:
    """A message replaces the progress, which continues below it; the cursor is never hidden."""
    monkeypatch.setenv("COLUMNS", "100")
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
    ("width", "line"),
    [
        (
            170,
            "attack type-1 (phase 1 of 2): 3 of 10, gradient matching (squared L2, L-BFGS) for 0:20, 0:50 elapsed, LEFT",
        ),
        (140, "attack type-1 (phase 1 of 2): 3 of 10, gradient matching (squared L2, L-…, 0:50 elapsed, LEFT"),
        (90, "attack type-1 (phase 1 of 2): 3 of 10, 0:50 elapsed, LEFT"),
        (80, "attack type-1 (phase 1 of 2): 3 of 10, LEFT"),
    ],
)
def test_a_narrow_terminal_shows_the_time_left(monkeypatch, width: int, line: str) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    now = Now(monkeypatch)
    report = Reporter(stream=Terminal())
    report.plan(["attack type-1", "train"])
    for done, seconds in enumerate([0, 10, 10, 10]):
        now.seconds += seconds
        report("attack type-1", done, 10)
    report.tick("gradient matching (squared L2, L-BFGS)")
    now.seconds += 20
    report.tick()
    report.close()
    shown = re.split(r"[\r\n]", re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", report.stream.getvalue()))
    assert line.replace("LEFT", "about 1:10 left in this phase") in [text.strip("╺━ ") for text in shown]
    assert max(map(len, shown)) <= width


@pytest.mark.parametrize(
    ("measured", "line"),
    [
        ([], "4 cells to measure; the time is not known before the first one is measured"),
        ([60.0, 120.0], "4 cells to measure, about 6:00 by the 2 that were measured before"),
    ],
)
def test_the_estimate_of_cells_uses_the_measured_ones(measured: list[float], line: str) -> None:
    assert cells_line(4, measured) == line
    assert cells_line(1, [5.0]).startswith("1 cell to measure, about 0:05")
    assert cells_line(6, [60.0], 3) == "3 settings, 6 cells to measure, about 3:00 by the 1 that were measured before"
    assert cells_line(1, [], 1).startswith("1 setting, 1 cell to measure; ")
    assert cells_line(6, [], 2, more=True).startswith("2 settings, at least 6 cells to measure; ")


def test_a_later_chunk_continues_the_count_of_the_earlier_one(tmp_path, monkeypatch) -> None:
    """Three victims, two in the first chunk: the third's share of iterations is added to the two finished ones."""
    monkeypatch.setattr("leakbench.experiment.stage_attack._chunk", lambda *_: 2)
    told: list[float] = []
    cell = prepare(Request(**{**SMALL, "attack": "inverting_gradients", "iterations": 2}), None)
    with open_run(tmp_path, identity(cell, "test")) as run:
        execute(cell, run, lambda phase, done, _: told.append(done) if phase == "attack type-1" else None)
    assert told == [0, 1.0, 2, 2.5, 3]
