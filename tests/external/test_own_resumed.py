"""An interrupted attack on an external update resumes from its folder with bit-identical results; converged searches end."""

from __future__ import annotations

import dataclasses
import io
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

import leakbench
from leakbench.attack.clock import search_costs
from leakbench.attack.methods.autoleak import AutoLeak
from leakbench.attack.slots.descent import AdamDescent, LbfgsDescent, Terms, descend
from leakbench.attack.slots.stop import Iterations
from leakbench.cli.external import attack as command
from leakbench.core.answers import Fit
from leakbench.core.behaviour import SHARED
from leakbench.core.errors import InputError
from leakbench.core.progress import Reporter
from leakbench.core.words import seconds
from leakbench.external.attack import attack_trace, attack_traces
from leakbench.external.attacker import Attacker, AttackerOptions
from leakbench.external.saved import SavedAnswer, SavedSearches
from leakbench.external.scoring import Scorer
from leakbench.external.trace import Trace, Training
from leakbench.federated.searches import EXACT, IMPROVES, WINDOW, Searches, search_name, usual_share
from leakbench.storage.store import finished_run
from tests.offline import python_path
from tests.own_network import CLASSES, SHAPE, batch, build, gradient

HOME = Path(__file__).parents[2]


class Kept(dict[str, dict[str, Tensor]]):
    """A store that interrupts the attack, like Ctrl-C, at a write with a given number."""

    def __init__(self, left: int | None = None) -> None:
        super().__init__()
        self.left = left
        self.writes = 0

    def read(self, name: str) -> dict[str, Tensor] | None:
        return None if name not in self else {key: tensor.clone() for key, tensor in self[name].items()}

    def write(self, name: str, tensors: dict[str, Tensor]) -> None:
        self[name] = {key: tensor.clone() for key, tensor in tensors.items()}
        self.writes += 1
        if self.left is not None:
            self.left -= 1
            if self.left == 0:
                raise KeyboardInterrupt


def seen_and_attacker(**changed: Any) -> tuple[Trace, Attacker]:
    """Return two victims, each with the gradient of a batch of three, which takes a search several iterations."""
    model = build()
    x, y = batch(6)
    each = [gradient(model, x[v : v + 3], y[v : v + 3]) for v in (0, 3)]
    seen = Trace(model, each, SHAPE, CLASSES, Training(3), truth=(x.reshape(2, 3, *SHAPE), y.reshape(2, 3)))
    return seen, AttackerOptions(**{"attack": "autoleak", "iterations": 4, **changed})()


@pytest.fixture(autouse=True)
def saved_at_each_iteration(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("leakbench.federated.searches.COSTLY", 0.0)
    monkeypatch.setattr("leakbench.federated.searches.EVERY", 0.0)


def assert_same(found: Any, wanted: Any) -> None:
    for name in ("inputs", "labels", "certainty", "trajectory", "steps", "evaluations", "spent", "stage"):
        mine, theirs = getattr(found.answer, name), getattr(wanted.answer, name)
        if wanted.answer.stage is not None or name != "stage":
            torch.testing.assert_close(mine, theirs, rtol=0, atol=0, equal_nan=True)
    assert found.answer.doubts.keys() == wanted.answer.doubts.keys()


@pytest.mark.slow
@pytest.mark.parametrize("attack", ["cpl", "inverting_gradients", "whitened_public"])
def test_an_attack_resumes_bit_identically_from_every_save(attack: str) -> None:
    """The attack is interrupted after each of its saves in turn, also between two saves of one search."""
    point = seen_and_attacker(attack=attack)
    kept = Kept()
    wanted = attack_trace(*point, Reporter(quiet=True), kept)
    writes = int(wanted.answer.steps.max())
    assert writes > 2
    for after in range(1, writes + 1):
        broken = Kept(after)
        with pytest.raises(KeyboardInterrupt):
            attack_trace(*point, Reporter(quiet=True), broken)
        broken.left = None
        assert_same(attack_trace(*point, Reporter(quiet=True), broken), wanted)


@pytest.mark.slow
def test_the_stages_and_the_check_of_autoleak_resume() -> None:
    """Searches of the victims, and of public examples behind noise, where nothing certifies a reconstruction."""
    point = seen_and_attacker(defense="noise_gaussian")
    kept = Kept()
    wanted = attack_trace(*point, Reporter(quiet=True), kept)
    assert len(kept) > 2
    assert any(".check" in name for name in kept)
    for after in (1, kept.writes // 3, 2 * kept.writes // 3, kept.writes):
        broken = Kept(after)
        with pytest.raises(KeyboardInterrupt):
            attack_trace(*point, Reporter(quiet=True), broken)
        broken.left = None
        assert_same(attack_trace(*point, Reporter(quiet=True), broken), wanted)


def test_a_resumed_search_reports_its_finished_share_of_iterations() -> None:
    """Interrupted after its second save of four iterations; a complete one does not resume."""
    point, broken = seen_and_attacker(attack="inverting_gradients"), Kept(2)
    with pytest.raises(KeyboardInterrupt):
        attack_trace(*point, Reporter(quiet=True), broken)
    broken.left = None
    saved = int(max(state["iteration"] for state in broken.values()))
    resumed = []
    for _ in range(2):
        report = Reporter(stream=io.StringIO())
        attack_trace(*point, report, broken)
        resumed.append([line for line in report.stream.getvalue().splitlines() if "resumed" in line])
    (line,), complete = resumed
    assert f": {25 * saved}%, resumed at {25 * saved}%" in line
    assert not complete


@pytest.mark.parametrize(("without", "more"), [("inverse", "crossed"), ("inverse", None), (None, "extra")])
def test_a_search_saved_with_other_tensors_starts_again(without: str | None, more: str | None) -> None:
    """Another version of a search saves other tensors; their numbers would not continue this one."""
    point, wanted, broken = seen_and_attacker(attack="cpl"), Kept(), Kept(2)
    complete = attack_trace(*point, Reporter(quiet=True), wanted)
    with pytest.raises(KeyboardInterrupt):
        attack_trace(*point, Reporter(quiet=True), broken)
    for state in broken.values():
        some = state["search.inverse"]
        if without:
            del state[f"search.{without}"]
        if more:
            state[f"search.{more}"] = some
    broken.left = None
    report = Reporter(stream=io.StringIO())
    assert_same(attack_trace(*point, report, broken), complete)
    assert "resumed" not in report.stream.getvalue()


@pytest.mark.slow
def test_a_search_from_another_start_is_not_resumed() -> None:
    """The saved state of one seed does not apply to another."""
    kept = Kept()
    attack_trace(*seen_and_attacker(attack="cpl", seed=1), Reporter(quiet=True), kept)
    found = attack_trace(*seen_and_attacker(attack="cpl"), Reporter(quiet=True), kept)
    assert_same(found, attack_trace(*seen_and_attacker(attack="cpl"), Reporter(quiet=True)))


@pytest.mark.slow
def test_a_folder_resumes_only_the_same_attack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder contains its partial result; a damaged part is searched again; another update is refused."""
    point, names = seen_and_attacker(attack="cpl"), AttackerOptions(attack="cpl").names
    wanted = attack_traces({"type-1": point}, tmp_path / "whole", names, "test", reporter=Reporter(quiet=True))
    writes = iter(range(100))

    def interrupted(share: float) -> None:
        if next(writes) == 2:
            raise KeyboardInterrupt

    begin = Searches.begin

    def telling(self: Searches, method: Any) -> Any:
        found = begin(self, method)
        found.tell = interrupted
        return found

    monkeypatch.setattr(Searches, "begin", telling)
    with pytest.raises(KeyboardInterrupt):
        attack_traces({"type-1": point}, tmp_path / "cut", names, "test", reporter=Reporter(quiet=True))
    monkeypatch.setattr(Searches, "begin", begin)
    (part,) = (tmp_path / "cut" / "parts").iterdir()
    partial = load_file(part)
    assert partial["inputs"].shape == (2, 3, *SHAPE)
    assert int(partial["iteration"]) == 2
    other = seen_and_attacker(attack="cpl", seed=7)
    with pytest.raises(InputError, match="cut' contains another attack"):
        attack_traces({"type-1": other}, tmp_path / "cut", names, "test", reporter=Reporter(quiet=True))
    found = attack_traces({"type-1": point}, tmp_path / "cut", names, "test", reporter=Reporter(quiet=True))
    assert_same(found["type-1"], wanted["type-1"])
    assert not (tmp_path / "cut" / "parts").exists()
    files = [load_file(tmp_path / name / "reconstructions.safetensors") for name in ("cut", "whole")]
    assert files[0].keys() == files[1].keys()
    assert all(torch.equal(files[0][key], files[1][key]) for key in files[0])


def attacked(point: tuple[Trace, Attacker], folder: Path) -> Any:
    names = AttackerOptions(attack="autoleak").names
    return attack_traces({"type-1": point}, folder, names, "test", reporter=Reporter(quiet=True))["type-1"]


@pytest.fixture
def without_searches(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Return what makes every further search of the victims fail."""

    def never(*_: Any) -> None:
        raise AssertionError("searched again")

    return lambda: monkeypatch.setattr("leakbench.external.attack.answered", never)


def test_reconstructions_are_saved_before_they_are_scored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, without_searches: Callable[[], None]
) -> None:
    """The attack is interrupted at its first score; behind noise, a check on public examples follows the scores."""
    point = seen_and_attacker(defense="noise_gaussian")
    wanted = attacked(point, tmp_path / "whole")

    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(Scorer, "__call__", interrupted)
        attacked(point, tmp_path / "cut")
    assert not (tmp_path / "cut" / "rows.parquet").exists()
    without_searches()
    found = attacked(point, tmp_path / "cut")
    assert_same(found, wanted)
    assert all(torch.equal(found.answer.doubts[name], doubt) for name, doubt in wanted.answer.doubts.items())
    assert found.answer.stages == wanted.answer.stages
    pd.testing.assert_frame_equal(found.rows, wanted.rows)


def test_another_truth_is_scored_without_a_search(tmp_path: Path, without_searches: Callable[[], None]) -> None:
    """A truth with wrong values, the right one, and none: each gives the result of a new folder, except for its time."""
    trace, attacker = seen_and_attacker(attack="inverting_gradients")
    assert trace.truth is not None
    wrong = dataclasses.replace(trace, truth=(1 - trace.truth[0], trace.truth[1]))
    unknown = dataclasses.replace(trace, truth=None)
    points = [(each, attacker) for each in (wrong, trace, unknown, trace)]
    wanted = [attacked(point, tmp_path / f"new{n}") for n, point in enumerate(points)]
    attacked(points[0], tmp_path / "one")
    without_searches()
    for point, new in zip(points, wanted, strict=True):
        found = attacked(point, tmp_path / "one")
        assert_same(found, new)
        assert (tmp_path / "one" / "rows.parquet").exists() == (new.rows is not None)
        if new.rows is not None:
            pd.testing.assert_frame_equal(found.rows, new.rows)
    assert not torch.equal(torch.tensor(wanted[0].rows["rmse"]), torch.tensor(wanted[1].rows["rmse"]))
    other = dataclasses.replace(attacker, seed=7)
    with pytest.raises(InputError, match="one' contains another attack"):
        attacked((trace, other), tmp_path / "one")


def test_the_check_of_saved_searches_draws_as_after_the_searches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of `autoleak`, whose failure with a wrong truth is checked on public examples, once after the searches and once later."""
    trace, attacker = seen_and_attacker()
    assert trace.truth is not None
    points = [
        (dataclasses.replace(trace, truth=(truth, trace.truth[1])), attacker)
        for truth in (1 - trace.truth[0], trace.truth[0] * 0.3)
    ]
    seen = []
    check = AutoLeak.checked

    def checked(self: AutoLeak, answer: Any, view: Any, rng: torch.Generator) -> Any:
        seen.append((rng.get_state(), view.searches.begun))
        return check(self, answer, view, rng)

    monkeypatch.setattr(AutoLeak, "checked", checked)
    first, second = (attacked(point, tmp_path / "one") for point in points)
    (state, begun), (later, again) = seen
    assert torch.equal(state, later)
    assert begun == again > 0
    with finished_run(tmp_path / "one") as run:
        saved = SavedAnswer(run, "type-1").read()
    assert saved is not None
    assert 0 < saved.seconds < first.seconds
    assert second.seconds > saved.seconds  # The time of the searches counts, though they did not run.


def test_saved_reconstructions_are_read_as_they_were(tmp_path: Path) -> None:
    point = seen_and_attacker(attack="inverting_gradients")
    attacked(point, tmp_path / "one")
    with finished_run(tmp_path / "one") as run:
        saved = SavedAnswer(run, "type-1")
        found = saved.read()
        assert found is not None
        answer = dataclasses.replace(
            found.answer, fit=Fit(seconds=3.5, public=40), stages=("a", "b"), doubts={"x": torch.ones(2)}
        )
        changed = dataclasses.replace(found, answer=answer, begun=7, checked=not found.checked, seconds=12.5)
        saved.write(changed)
        again = saved.read()
    assert again is not None
    assert (again.answer.fit, again.answer.stages) == (answer.fit, answer.stages)
    assert torch.equal(again.answer.doubts["x"], torch.ones(2))
    assert (again.begun, again.checked, again.seconds) == (7, changed.checked, 12.5)
    assert torch.equal(again.states, found.states)
    for each in dataclasses.fields(answer):
        mine, theirs = getattr(again.answer, each.name), getattr(answer, each.name)
        assert not isinstance(theirs, Tensor) or torch.equal(mine.nan_to_num(), theirs.nan_to_num())


def test_another_engine_makes_other_reconstructions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    point = seen_and_attacker(attack="inverting_gradients")
    attacked(point, tmp_path / "one")
    for name in ("engine", "batches", "leakage", "local steps"):
        with monkeypatch.context() as patched, pytest.raises(InputError, match="one' contains another attack"):
            patched.setitem(SHARED, name, 9)
            attacked(point, tmp_path / "one")


def test_the_command_of_a_folder_is_the_last_one(tmp_path: Path) -> None:
    point = seen_and_attacker(attack="inverting_gradients")
    for words in ("first", "second"):
        attack_traces({"type-1": point}, tmp_path / "one", {}, words, reporter=Reporter(quiet=True))
    with finished_run(tmp_path / "one") as run:
        assert run.manifest["command"] == "second"


def said(point: tuple[Trace, Attacker], folder: Path) -> tuple[Any, str]:
    """Attack, and return the outcome with what was printed."""
    report = Reporter(quiet=True, stream=io.StringIO())
    names = AttackerOptions(attack="autoleak").names
    return attack_traces({"type-1": point}, folder, names, "test", reporter=report)["type-1"], report.stream.getvalue()


@pytest.mark.parametrize(
    ("wrong", "line"),
    [
        (lambda path: path.unlink(), "is missing; it is made again"),
        (lambda path: path.write_bytes(path.read_bytes()[:-9]), "is not what the run wrote; it is made again"),
        (None, "has other arrays than an attack saves; it is made again"),
    ],
)
def test_damaged_reconstructions_are_made_again_and_reported(tmp_path: Path, wrong: Any, line: str) -> None:
    point = seen_and_attacker(attack="inverting_gradients")
    wanted = attacked(point, tmp_path / "one")
    path = tmp_path / "one" / "answers.type-1.safetensors"
    if wrong is None:  # With the right checksum.
        with finished_run(tmp_path / "one") as run:
            tensors = run.read_tensors(path.name)
            del tensors["rest"]
            run.write_tensors(path.name, tensors)
    else:
        wrong(path)
    found, printed = said(point, tmp_path / "one")
    assert_same(found, wanted)
    assert f"{path}: {line}\n" in printed
    assert line not in said(point, tmp_path / "one")[1]


def test_a_search_that_is_repeated_in_a_complete_folder_resumes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its budget starts again, and the reconstructions are those of an uninterrupted attack."""
    point = seen_and_attacker(attack="inverting_gradients")
    wanted = attacked(point, tmp_path / "one")
    (tmp_path / "one" / "answers.type-1.safetensors").unlink()
    write, spent = SavedSearches.write, []

    def interrupted(self: SavedSearches, name: str, tensors: dict[str, Tensor]) -> None:
        spent.append(self.spent)
        write(self, name, tensors)
        if len(spent) == 2:
            raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(SavedSearches, "write", interrupted)
        attacked(point, tmp_path / "one")
    assert spent[0] == 0 and list((tmp_path / "one" / "parts").iterdir())
    resumed = Reporter(stream=io.StringIO())
    names = AttackerOptions(attack="autoleak").names
    found = attack_traces({"type-1": point}, tmp_path / "one", names, "test", reporter=resumed)["type-1"]
    assert_same(found, wanted)
    assert "resumed at" in resumed.stream.getvalue()
    assert not (tmp_path / "one" / "parts").exists()


def test_a_truth_among_the_public_examples_is_another_attack(tmp_path: Path) -> None:
    """The attacker does not have a true example, so that its public examples depend on the truth."""
    trace, attacker = seen_and_attacker(attack="cpl")
    assert trace.truth is not None
    attacked((trace, attacker), tmp_path / "one")
    public = attacker.public(SHAPE, CLASSES).inputs[:6].reshape(2, 3, *SHAPE)
    other = dataclasses.replace(trace, truth=(public, trace.truth[1]))
    with pytest.raises(InputError, match="one' contains another attack"):
        attacked((other, attacker), tmp_path / "one")


def test_without_the_truth_a_search_that_was_not_checked_is_repeated(
    tmp_path: Path, without_searches: Callable[[], None]
) -> None:
    """With the truth, `autoleak` tries public examples only after a failure, which is unknown without it."""
    trace, attacker = seen_and_attacker()
    unknown = dataclasses.replace(trace, truth=None), attacker
    attacked((trace, attacker), tmp_path / "one")
    assert_same(attacked(unknown, tmp_path / "one"), attacked(unknown, tmp_path / "new"))
    without_searches()
    assert attacked((trace, attacker), tmp_path / "one").rows is not None


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_command_that_is_killed_resumes(number: signal.Signals, tmp_path: Path) -> None:
    """The process ends after its first saves; the same command then writes the same files as an uninterrupted one."""
    model = build()
    x, y = batch(1)
    save_file(gradient(model, x, y), tmp_path / "update.safetensors")
    words = ["--model", "tests.own_network:build", "--update", str(tmp_path / "update.safetensors"), "--shape", "1,8,8"]
    words += ["--classes", "10", "--attack", "inverting_gradients", "--iterations", "300"]
    start = "import leakbench.federated.searches as s; s.EVERY = s.COSTLY = 0.0; from leakbench.cli import main; main()"
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": python_path(HOME)}

    def begun(out: str) -> subprocess.Popen[bytes]:
        line = [sys.executable, "-c", start, "attack", *words, "--out", str(tmp_path / out)]
        return subprocess.Popen(line, env=environment, cwd=HOME, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)

    left_alone = begun("whole")
    left_alone.communicate()
    assert left_alone.returncode == 0
    child = begun("cut")
    while not list((tmp_path / "cut" / "parts").glob("*.safetensors")):
        assert child.poll() is None
        time.sleep(0.01)
    child.send_signal(number)
    _, err = child.communicate()
    assert child.returncode in (-number, 130)
    assert number == signal.SIGKILL or b"run the same command again to resume" in err
    resumed = begun("cut")
    resumed.communicate()
    assert resumed.returncode == 0
    files = [load_file(tmp_path / name / "reconstructions.safetensors") for name in ("cut", "whole")]
    assert all(torch.equal(files[0][key], files[1][key]) for key in files[1])


# Convergence of a search


class Method:
    """Return a search with a descent, 1,200 iterations and nothing else."""

    def __init__(self, descent: Any) -> None:
        self.descent, self.stop = descent, Iterations(limit=1200)


def searching(descent: Any) -> Any:
    return Searches().begin(Method(descent))


def test_a_search_has_converged_if_it_has_not_improved() -> None:
    """One lane improves by twice the share in each window, one stays, one got worse after an early best value."""
    running = searching(LbfgsDescent())
    steady = torch.tensor([(1 - 2 * IMPROVES) ** (n / WINDOW) for n in range(WINDOW + 2)])
    level = torch.ones(WINDOW + 2)
    worse = torch.cat([torch.tensor([3.0, 1.0]), torch.linspace(2, 3, WINDOW)])
    trajectory = torch.stack([steady, level, worse], 1)
    assert running.converged(trajectory).tolist() == [False, True, True]
    assert running.converged(trajectory[:WINDOW]).tolist() == [False, False, False]
    # The last improvement may be exactly one window ago.
    recent = torch.cat([torch.full((2,), 2.0), torch.ones(WINDOW)])[:, None]
    assert running.converged(recent[: WINDOW + 1]).tolist() == [False] and running.converged(recent).tolist() == [False]
    assert running.converged(torch.cat([recent, torch.ones(1, 1)])).tolist() == [True]


def test_a_search_has_converged_if_its_match_is_exact() -> None:
    running = searching(LbfgsDescent())
    trajectory = torch.tensor([[1.0, 1.0, -1.0], [EXACT / 2, 2 * EXACT, -2.0]])
    assert running.converged(trajectory).tolist() == [True, False, False]


def test_a_search_by_a_schedule_has_converged_if_a_lower_rate_does_not_improve_it() -> None:
    """Adam can improve again when its learning rate falls, after 450 of 1,200 iterations. It then has 100 to do so."""
    running, level, falls = searching(AdamDescent()), torch.ones(551), torch.ones(551)
    falls[500] = 0.9
    assert not running.converged(level[:550, None]).any()
    assert running.converged(torch.stack([level, falls], 1)).tolist() == [True, False]
    assert not searching(AdamDescent(milestones=())).converged(torch.ones(1200, 1)).any()


def test_the_usual_share_of_a_search_is_what_it_takes_until_it_converges() -> None:
    """Half of the iterations of L-BFGS, and a quarter more than Adam's first possible convergence."""
    assert usual_share(Method(LbfgsDescent())) == 0.5
    assert usual_share(Method(AdamDescent())) == pytest.approx(1.25 * 550 / 1200)
    assert usual_share(Method(AdamDescent(milestones=()))) == 1.0


def test_a_converged_search_ends_and_the_others_continue() -> None:
    """One of two parabolas reached its minimum after the first steps: the other is searched as if alone."""
    rng = torch.Generator().manual_seed(0)
    start, scale = torch.randn(2, 6, generator=rng), torch.tensor([[1.0], [1e-30]])

    def objective(points: Tensor, lanes: Tensor) -> tuple[Tensor, Tensor]:
        bent = (scale[lanes] * points) ** 4 + (1 - scale[lanes])
        return bent.sum(1), 4 * scale[lanes] * (scale[lanes] * points) ** 3

    terms = Terms(60, 6, lambda points: points)
    running = searching(LbfgsDescent(learning_rate=0.01))
    found = descend(LbfgsDescent(learning_rate=0.01, inner=2)(start, terms), objective, Iterations(limit=60), running)
    assert int(found.steps[0]) > int(found.steps[1])
    assert int(found.steps[1]) <= WINDOW + 1


def test_the_winning_search_is_named() -> None:
    outcome = attack_trace(*seen_and_attacker(), Reporter(quiet=True))
    assert set(outcome.searches) <= set(outcome.answer.stages)
    assert len(outcome.searches) == 2
    assert outcome.searches[0] in outcome.note
    assert attack_trace(*seen_and_attacker(attack="cpl"), Reporter(quiet=True)).note == ""


def test_names_of_searches_are_readable() -> None:
    methods = [stage.method for stage in AttackerOptions()().attack.method.stages]
    assert [search_name(method) for method in methods] == [
        "analytic fc",
        "feature inversion (L-BFGS)",
        "feature inversion (Adam)",
        "gradient matching (squared L2, L-BFGS)",
        "gradient matching (likelihood, L-BFGS)",
        "gradient matching (cosine, Adam)",
        "gradient matching (cosine, Adam)",
    ]


# Budget and estimate


@pytest.mark.parametrize(
    ("given", "wanted"),
    [(None, None), ("60", 60.0), ("60s", 60.0), ("2m", 120.0), ("1.5h", 5400.0), (60, 60.0), (0.5, 0.5)],
)
def test_a_budget_is_seconds_or_has_a_unit(given: Any, wanted: float | None) -> None:
    assert seconds("budget", given) == wanted


@pytest.mark.parametrize("given", ["0", 0, -1.0, "1 hour", "", "60 s m", float("nan"), float("inf")])
def test_an_invalid_budget_is_refused(given: Any) -> None:
    with pytest.raises(InputError, match="budget: got"):
        seconds("budget", given)


def test_the_estimate_counts_every_evaluation_of_every_search() -> None:
    """A clock that moves by one second at each reading: a trial takes equally long for each search, on any machine."""
    now = [0.0]

    def clock() -> float:
        now[0] += 1.0
        return now[0]

    seen, attacker = seen_and_attacker(attack="cpl")
    method = attacker.attack.method
    (cost,) = search_costs(method, (seen.view,), clock)
    assert cost == pytest.approx(2 * (4 * 20 + 1))
    public = attacker.public(SHAPE, CLASSES)
    several = search_costs(AttackerOptions()().attack.method, (dataclasses.replace(seen.view, public=public),), clock)
    assert several == pytest.approx([2 * (30 * 20 + 1), 2 * (1000 + 1), 2 * (100 * 20 + 1), 2 * (100 * 20 + 1)])


def test_python_accepts_a_budget_and_refuses_an_invalid_one_in_one_line() -> None:
    model = build()
    x, y = batch(1)
    update = gradient(model, x, y)
    with pytest.raises(InputError, match="budget: got 'soon'"):
        leakbench.attack_update(model, update, shape=SHAPE, classes=CLASSES, budget="soon")
    began = time.monotonic()
    found = leakbench.attack_update(model, update, shape=SHAPE, classes=CLASSES, attack="cpl", budget=0.3)
    assert bool(found.answer.inputs.isfinite().all())
    assert time.monotonic() - began < 30


def test_an_attack_stopped_by_its_budget_is_not_called_evidence() -> None:
    """No victim is within an RMSE of 1e-6 after one iteration: the sentence does not call this evidence."""
    seen, attacker = seen_and_attacker(attack="inverting_gradients", iterations=300, budget=1e-6, success=1e-6)
    found = attack_trace(seen, attacker, Reporter(quiet=True))
    assert found.budget == 1e-6
    assert found.summary is not None and found.summary["asr"] == 0
    sentence = "which is not evidence that the update does not leak"
    limit = f"the budget of 1e-06 s ({found.seconds:.1f} s taken)"
    stopped = f"{limit} stopped searches; a longer attack may reconstruct more"
    identified = found.summary["verdict"] == "identifies"
    assert found.note == (stopped if identified else f"no leak found with {limit}, {sentence}")
    assert found.seconds > 1e-6  # The budget is not a bound.
    assert attack_trace(*seen_and_attacker(attack="cpl"), Reporter(quiet=True)).budget is None


def test_the_command_has_a_budget_and_can_be_quiet() -> None:
    assert {"budget", "quiet"} <= {parameter.name for parameter in command.params}


def test_the_bound_of_an_attack_never_grows(monkeypatch: pytest.MonkeyPatch) -> None:
    """For any reports of the searches, in the order in which they run, the predicted end only comes nearer.

    The trial predicts 1,000 s for each search, so that the bound falls on a machine of any speed.
    """
    monkeypatch.setattr("leakbench.external.attack.search_costs", lambda *_: [1000.0] * 2)
    seen, attacker = seen_and_attacker(defense="noise_gaussian")
    ends = []
    monkeypatch.setattr(Reporter, "__call__", lambda self, *_: ends.append(self._end))
    attack_trace(seen, attacker, Reporter(quiet=True))
    assert len(ends) > 3
    assert None not in ends
    assert ends == sorted(ends, reverse=True)
    assert ends[-1] < ends[0]
