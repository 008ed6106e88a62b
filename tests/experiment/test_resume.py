"""A run interrupted at any moment and in any way resumes, and ends with the same files as an uninterrupted one."""

import errno
import fcntl
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pandas as pd
import pytest
import torch
from command_line import called
from resealed import reseal
from safetensors.numpy import load_file

from leakbench import cli
from leakbench.cell import Cell, Request, resolve_cell
from leakbench.cell.device import conditions
from leakbench.core.process import NOTHING, SAID
from leakbench.execute import execute
from leakbench.storage.store import open_run
from tests.offline import python_path

pytestmark = pytest.mark.usefixtures("with_pages")

HOME = Path(__file__).parents[2]
SEED = 20240229

LISTENING = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
"""A shell that starts the tests in the background lets its children ignore SIGINT; these must not."""

LIVE = [
    *("--dataset", "digits", "--attack", "inverting_gradients", "--defense", "fed_cdp_valid", "--protocol", "live"),
    *("--leak-rounds", "0,last", "--taps", "type-2,type-1", "--leak-batch", "1", "--candidates", "10"),
    *("--victims", "3", "--iterations", "2", "--train-rounds", "8"),
    *("--clients", "6", "--clients-per-round", "3", "--local-iterations", "2"),
]

MINI = Request(
    dataset="digits",
    attack="inverting_gradients",
    defense="fed_cdp_valid",
    protocol="live",
    leak_rounds=("0", "last"),
    taps=("type-2", "type-1"),
    victims=2,
    iterations=1,
    train_rounds=2,
    clients=4,
    clients_per_round=2,
    local_iterations=1,
    batch=2,
    leak_batch=1,
    candidates=10,
)


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """Use one thread, as the child processes do: only then are results bit-identical."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def command(folder: Path, *more: str) -> list[str]:
    return ["run", *LIVE, "--out", str(folder), *more]


@contextmanager
def started(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """Start the run in a separate process and return it once its first stage has begun."""
    child = subprocess.Popen(
        [sys.executable, "-c", f"{LISTENING}; from leakbench.cli import main; main()", *command(folder)],
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": python_path(HOME)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        line = child.stderr.readline() if child.stderr else ""
        assert " of " in line
        yield child
    finally:
        child.kill()
        child.communicate()


def files(folder: Path) -> list[str]:
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*"))


def assert_same_results(folder: Path, expected: Path) -> None:
    """Compare all measurements, bit by bit; only wall times may differ."""
    assert files(folder) == files(expected)
    for name in ("rows.parquet", "rounds.parquet"):
        pd.testing.assert_frame_equal(
            pd.read_parquet(folder / name), pd.read_parquet(expected / name), check_exact=True
        )
    for path in expected.glob("*.safetensors"):
        found, wanted = load_file(folder / path.name), load_file(path)
        assert {k: (t.shape, t.tobytes()) for k, t in found.items()} == {
            k: (t.shape, t.tobytes()) for k, t in wanted.items()
        }
    assert summary_of(folder) == summary_of(expected)


def summary_of(folder: Path) -> dict:
    """Return the summary of a finished run without the parts that depend on the clock and the folder."""
    summary = json.loads((folder / "manifest.json").read_text())["summary"]
    for tap in summary["taps"].values():
        del tap["seconds"]
    return {key: value for key, value in summary.items() if key != "folder"}


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory, one_thread) -> tuple[Path, float]:
    """Return the folder of an uninterrupted run, and its duration in seconds."""
    folder = tmp_path_factory.mktemp("unbroken") / "run"
    before, sys.argv = sys.argv, ["leakbench", *command(folder, "--quiet")]
    began = time.monotonic()
    try:
        cli.main()
    finally:
        sys.argv = before
    return folder, time.monotonic() - began


@pytest.mark.long
def test_interrupted_once_and_killed_once_at_random(unbroken, tmp_path, monkeypatch, capsys):
    expected, seconds = unbroken
    folder = tmp_path / "run"
    with started(folder) as child:
        child.send_signal(signal.SIGINT)
        out, err = child.communicate()
    assert (child.returncode, out) == (130, "")
    assert "Traceback" not in err
    last = err.splitlines()[-1]
    assert last in (f"leakbench: {SAID}", f"leakbench: {NOTHING}")  # The first part may or may not be finished.
    with started(folder) as child:
        time.sleep(random.Random(SEED).uniform(0.02, 0.3) * seconds)
    assert child.returncode == -signal.SIGKILL
    assert not json.loads((folder / "manifest.json").read_text())["complete"]
    assert called(monkeypatch, capsys, *command(folder))[0] == 0
    assert_same_results(folder, expected)


# One small cell, in this process


@pytest.fixture(scope="module")
def cell() -> Cell:
    return resolve_cell(MINI, None)


def identity(cell: Cell) -> dict:
    return {"hash": cell.hash, "cell": cell.names, "command": "test"}


def go(cell: Cell, folder: Path, progress: Callable[..., None] = lambda *_: None) -> None:
    with open_run(folder, identity(cell)) as run:
        execute(cell, run, progress)


@pytest.fixture(scope="module")
def whole(cell, tmp_path_factory) -> Path:
    """Return the folder of a small uninterrupted run."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    go(cell, folder)
    return folder


class Stop:
    """Progress that ends the run like Ctrl-C after this many chunks."""

    def __init__(self, pieces: int) -> None:
        self.left = pieces

    def __call__(self, phase: str, done: int, total: int | None) -> None:
        self.left -= done > 0  # Nothing is finished when a stage reports its start.
        if self.left == 0:
            raise KeyboardInterrupt


def stopped(cell: Cell, folder: Path, pieces: int) -> list[Path]:
    """Interrupt a small run after this many chunks; return the files of its parts."""
    with pytest.raises(KeyboardInterrupt):
        go(cell, folder, Stop(pieces))
    return sorted((folder / "parts").iterdir())


@pytest.mark.slow
def test_from_every_moment_at_which_the_folder_changes(cell, whole, tmp_path, monkeypatch):
    """The folder is copied before each file is put in place, which is the state after a kill at that moment."""
    folder, moments = tmp_path / "run", []
    replace = Path.replace

    def copying(self: Path, target: Path) -> Path:
        if self.is_relative_to(folder):
            moments.append(tmp_path / f"moment{len(moments)}")
            shutil.copytree(folder, moments[-1])
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", copying)
    go(cell, folder)
    monkeypatch.undo()
    assert_same_results(folder, whole)
    assert len(moments) > 20
    for moment in random.Random(SEED).sample(moments, 5):
        go(cell, moment)
        assert_same_results(moment, whole)


def cut(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-5] ^= 1
    path.write_bytes(content)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "damage"),
    [("*.parquet", cut), ("*.parquet", Path.unlink), ("type*.safetensors", flip), ("train*.safetensors", cut)],
)
def test_a_damaged_part_is_measured_again(kind, damage, cell, whole, tmp_path):
    parts = stopped(cell, tmp_path / "run", 4)
    chosen = [path for path in parts if path.match(kind)]
    assert chosen
    damage(chosen[0])
    go(cell, tmp_path / "run")
    assert_same_results(tmp_path / "run", whole)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["model.round0.safetensors", "model.round2.safetensors"])
def test_a_damaged_model_that_leaks_is_trained_again(name, cell, whole, tmp_path):
    stopped(cell, tmp_path / "run", 3)
    flip(tmp_path / "run" / name)
    go(cell, tmp_path / "run")
    assert_same_results(tmp_path / "run", whole)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["rows.parquet", "rounds.parquet", "reconstructions.safetensors", "model.safetensors"])
def test_a_damaged_file_of_a_finished_run_is_measured_again(name, cell, whole, tmp_path):
    shutil.copytree(whole, tmp_path / "run")
    flip(tmp_path / "run" / name)
    go(cell, tmp_path / "run")
    assert_same_results(tmp_path / "run", whole)


@pytest.mark.slow
def test_a_finished_run_that_lost_a_file_names_both_environments(cell, whole, tmp_path):
    """What is measured again may be measured elsewhere, as a run of a GPU on a CPU."""
    shutil.copytree(whole, tmp_path / "run")
    manifest = tmp_path / "run" / "manifest.json"
    there = {"torch": "2.0.0", "device": "cuda (x)"}
    reseal(tmp_path / "run", json.loads(manifest.read_text()) | {"computed": [there]})
    (tmp_path / "run" / "rows.parquet").unlink()
    go(cell, tmp_path / "run")
    assert json.loads(manifest.read_text())["computed"] == [there, conditions(torch.device("cpu"))]


def test_a_run_resumed_in_another_environment_reports_it(cell, tmp_path):
    """As after an upgrade: its rows come from both versions, which `versions`, from its start, would hide."""
    begun, now, said = (
        {"torch": "2.11.0", "threads": 1, "code": "a"},
        {"torch": "2.15.0", "threads": 1, "code": "a"},
        [],
    )
    for by in (begun, now, now):
        with (
            pytest.raises(KeyboardInterrupt),
            open_run(tmp_path, identity(cell) | {"computed": [by]}, say=said.append) as run,
        ):
            execute(cell, run, Stop(1))
    assert json.loads((tmp_path / "manifest.json").read_text())["computed"] == [begun, now]
    assert said == [f"{tmp_path}: was started in a different environment: torch 2.11.0 before, 2.15.0 now"]
    assert {"code", "torch", "numpy", "leakbench", "threads"} <= set(conditions(torch.device("cpu")))


def test_finished_parts_are_not_repeated(cell, tmp_path):
    stopped(cell, tmp_path / "run", 4)
    kept = {p: p.stat().st_mtime_ns for p in (tmp_path / "run/parts").iterdir() if not p.name.startswith("train")}
    assert kept
    stopped(cell, tmp_path / "run", 4)
    assert {p: p.stat().st_mtime_ns for p in kept} == kept


@pytest.mark.slow
def test_a_run_resumes_after_a_full_disk(cell, whole, tmp_path):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))
    try:
        with pytest.raises(OSError, match="File too large"):
            go(cell, tmp_path / "run")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert not list(tmp_path.rglob("*.tmp"))
    go(cell, tmp_path / "run")
    assert_same_results(tmp_path / "run", whole)


@pytest.mark.slow
def test_a_second_process_is_refused_in_one_line(unbroken, tmp_path, monkeypatch, capsys):
    folder = tmp_path / "run"
    shutil.copytree(unbroken[0], folder)
    with (folder / ".lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        code, out, err = called(monkeypatch, capsys, *command(folder))
    assert (code, out) == (2, "")
    assert err.startswith("leakbench: out: another leakbench is writing")
    assert err.count("\n") == 1
    assert str(folder) in err
    assert called(monkeypatch, capsys, *command(folder))[0] == 0


@pytest.mark.slow
def test_a_finished_run_started_again_does_nothing(unbroken, monkeypatch, capsys):
    folder, _ = unbroken
    before = {p: (p.stat().st_mtime_ns, p.read_bytes()) for p in folder.iterdir() if p.name != "report.html"}
    page = (folder / "report.html").read_bytes()
    outputs = [called(monkeypatch, capsys, *command(folder, "--json")) for _ in range(2)]
    assert outputs[0] == outputs[1]
    assert json.loads(outputs[0][1]) == json.loads((folder / "manifest.json").read_text())["summary"]
    assert {p: (p.stat().st_mtime_ns, p.read_bytes()) for p in before} == before
    assert (folder / "report.html").read_bytes() == page


@pytest.mark.slow
def test_the_seed_determines_the_results(cell, whole, tmp_path):
    go(cell, tmp_path / "same")
    assert_same_results(tmp_path / "same", whole)
    other = resolve_cell(Request(**{**MINI.__dict__, "seed": 1}), None)
    assert other.hash != cell.hash
    go(other, tmp_path / "other")
    rows, others = (pd.read_parquet(folder / "rows.parquet") for folder in (whole, tmp_path / "other"))
    assert len(rows) == len(others)
    assert not set(rows["rmse"]) & set(others["rmse"])
    accuracy = [pd.read_parquet(f / "rounds.parquet")["loss"].tolist() for f in (whole, tmp_path / "other")]
    assert accuracy[0] != accuracy[1]


@pytest.mark.parametrize("room", [0, 1])
def test_a_disk_too_full_for_a_file_and_its_checksum_is_unchanged(room, cell, tmp_path, monkeypatch):
    """After the first manifest there is space for this many files, but not for the next one, which may be the manifest again."""
    replace, left = Path.replace, iter(range(1 + room))

    def full(self: Path, target: Path) -> Path:
        if next(left, None) is None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(target))
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(OSError, match="No space left"):
        go(cell, tmp_path / "run")
    assert list(tmp_path.iterdir()) == []
