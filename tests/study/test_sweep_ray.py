"""Real sweeps by Ray and by submitit's own executor: killed, started again, and equal to the engine `process`.

Run by name, `pytest -m ray -n 0`; each part is skipped if its package is not installed.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import sweep_work
import yaml
from sweep_work import tasks

from leakbench.core.errors import InputError
from leakbench.study.on_ray import RayEngine
from leakbench.study.on_submitit import SubmititEngine
from tests.offline import python_path

# Processes that submitit detaches.
pytestmark = [
    pytest.mark.ray,
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]

HOME = Path(__file__).parents[2]
CELLS = 40

LISTENING = (
    "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); from leakbench.cli import main; main()"
)
"""A shell that starts the tests in the background lets its children ignore SIGINT; these must not."""

GRID = {
    "given": {
        **{"dataset": "digits", "attack": "cpl", "iterations": 2, "victims": 1, "candidates": 2, "taps": ["type-2"]},
        **{"train_rounds": 1, "clients": 2, "clients_per_round": 2, "local_iterations": 1},
    },
    "each": {"defense": ["none", "fed_cdp"], "seed": list(range(CELLS // 2))},
}


def command(folder: Path, name: str, *more: str) -> list[str]:
    """Return a sweep of the cells by an engine, in separate folders."""
    kept = ["--runs", str(folder / f"runs_{name}"), "--out", str(folder / name), "--workers", "2", "--json"]
    return [sys.executable, "-c", LISTENING, "sweep", str(folder / "grid.yaml"), *kept, *more]


def environment() -> dict[str, str]:
    path = python_path(HOME, HOME / "tests")
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path, "RAY_AUTH_MODE": "disabled"}


def ended(asked: list[str]) -> dict[str, int]:
    """Run a sweep to its end and return its output."""
    done = subprocess.run(asked, env=environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, int] = json.loads(done.stdout)
    return found


def finished(runs: Path) -> set[str]:
    """Return the complete runs."""
    manifests = (path / "manifest.json" for path in runs.glob("*"))
    return {path.parent.name for path in manifests if path.is_file() and json.loads(path.read_text())["complete"]}


def of_session(driver: int) -> list[int]:
    """Return the processes of a driver's Ray, by the driver's id in the name of its session."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_text()
        except OSError:
            continue
        if any(
            part.endswith(f"_{driver}") for part in words.replace("/", "\0").split("\0") if part.startswith("session_")
        ):
            found.append(int(path.parent.name))
    return found


@contextmanager
def started(asked: list[str]) -> Iterator[subprocess.Popen[bytes]]:
    """Start a process in a separate group; at the end none of the group remains."""
    process = subprocess.Popen(asked, env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def killed_after(asked: list[str], runs: Path, count: int, number: int = signal.SIGKILL) -> float:
    """Start a sweep, send it a signal after this many complete cells, and return how long it then took to end."""
    with started(asked) as driver:
        until = time.monotonic() + 300
        while len(finished(runs)) < count:
            assert driver.poll() is None
            assert time.monotonic() < until
            time.sleep(0.1)
        driver.send_signal(number)
        asked_at = time.monotonic()
        driver.wait(60)
        took = time.monotonic() - asked_at
        while of_session(driver.pid):
            assert time.monotonic() < asked_at + 30
            time.sleep(0.2)
        return took


@pytest.fixture(autouse=True)
def workers_find_the_tests(monkeypatch):
    for name in ("PYTHONPATH", "RAY_AUTH_MODE"):
        monkeypatch.setenv(name, environment()[name])


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Return a folder with the grid, measured by the engine `process`."""
    found = tmp_path_factory.mktemp("sweep")
    (found / "grid.yaml").write_text(yaml.safe_dump(GRID))
    assert ended(command(found, "process"))["run"] == CELLS
    return found


def assert_same(folder: Path, name: str) -> None:
    for table in ("rows.parquet", "cells.parquet"):
        assert (folder / name / table).read_bytes() == (folder / "process" / table).read_bytes()


def measured_again(folder: Path, name: str, *more: str) -> int:
    """Kill a sweep's driver after about ten cells, start it twice again, and return how many cells the third start measures.

    The second start measures exactly the missing cells, and the tables equal those of `process`.
    """
    runs = folder / f"runs_{name}"
    killed_after(command(folder, name, *more), runs, 10)
    time.sleep(3)  # Remaining tasks of a dead driver on the cluster end now.
    there = {path: path.stat().st_mtime_ns for run in finished(runs) for path in (runs / run).glob("*.parquet")}
    whole = len(finished(runs))
    assert 10 <= whole < CELLS
    said = ended(command(folder, name, *more))
    print(f"{name}: {whole} of {CELLS} were whole after kill -9; then {said}")
    assert said["there"] + said["found"] == whole
    assert said["run"] == CELLS - whole
    assert {path: path.stat().st_mtime_ns for path in there} == there
    third = ended(command(folder, name, *more))["run"]
    assert_same(folder, name)
    return int(third)


def test_process_resumes_after_its_driver_was_killed(folder):
    assert measured_again(folder, "process_killed") == 0


class TestRay:
    @pytest.fixture(autouse=True, scope="class")
    def ray(self):
        pytest.importorskip("ray", reason="ray is not installed: pip install 'leakbench[ray]'")

    def test_ray_resumes_after_its_driver_was_killed(self, folder):
        assert measured_again(folder, "ray", "--engine", "ray") == 0

    def test_ray_resumes_on_a_cluster_that_outlives_its_driver(self, folder, head):
        assert measured_again(folder, "cluster", "--engine", "ray", "--address", head) == 0

    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
    def test_a_signal_ends_the_sweep_and_its_ray_within_seconds(self, number, folder):
        name = f"signal{number}"
        took = killed_after(command(folder, name, "--engine", "ray"), folder / f"runs_{name}", 1, number)
        print(f"signal {number}: ended after {took:.1f} s")
        assert took < 5

    def test_a_killed_worker_is_noticed_and_its_task_repeated(self, tmp_path):
        outcomes = {o.key: o for o in RayEngine(workers=2, work=sweep_work.killed_once)(tasks(tmp_path, 4))}
        assert {key: (o.kind, o.tries) for key, o in outcomes.items()} == {
            **{key: ("done", 1) for key in "023"},
            "1": ("done", 2),
        }

    def test_a_sweep_within_a_task_is_refused(self, tmp_path):
        [outcome] = RayEngine(workers=1, work=sweep_work.nested)(tasks(tmp_path, 1))
        assert outcome.error == "sweep: this is a worker of the engine ray already; start the sweep outside of it"

    def test_more_places_than_the_cluster_has_are_refused_at_once(self, tmp_path, head):
        for engine, words in (
            (
                RayEngine(head, gpus_per_cell=0.25),
                "gpus-per-cell: got 0.25, but no node of this Ray has more than 0 GPUs",
            ),
            (RayEngine(head, threads=64), "threads-per-cell: got 64, but no node of this Ray has more than 2 CPUs"),
        ):
            with pytest.raises(InputError, match=words):
                list(engine(tasks(tmp_path, 1)))

    def test_the_address_of_a_dead_cluster_is_refused_within_5_s(self, folder):
        with cluster() as address:
            pass
        began = time.monotonic()
        asked = command(folder, "dead", "--engine", "ray", "--address", address)
        done = subprocess.run(asked, env=environment(), capture_output=True, text=True, check=False)
        took = time.monotonic() - began
        print(f"dead address: refused after {took:.1f} s: {done.stderr}")
        assert (done.returncode, done.stderr.count("\n")) == (2, 1)
        assert f"no Ray cluster answers at {address} (Connection refused)" in done.stderr
        assert took < 5

    def test_without_an_address_no_other_cluster_is_joined(self, tmp_path, head, monkeypatch):
        """A live one that is recorded as the current one."""
        monkeypatch.setenv("RAY_ADDRESS", head)
        [outcome] = RayEngine(workers=1, work=sweep_work.gcs)(tasks(tmp_path, 1))
        assert outcome.run
        assert outcome.run != head


@contextmanager
def cluster() -> Iterator[str]:
    """Start a head with two CPUs and no GPU, and return its address."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    asked = [
        "start",
        "--head",
        "--block",
        f"--port={port}",
        "--num-cpus=2",
        "--num-gpus=0",
        "--include-dashboard=false",
    ]
    quick = ["--node-ip-address=127.0.0.1", "--object-store-memory=100000000", "--disable-usage-stats"]
    ray = [sys.executable, "-c", "from ray.scripts.scripts import main; main()", *asked, *quick]
    process = subprocess.Popen(ray, env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        until = time.monotonic() + 120
        while True:
            with socket.socket() as line:
                if line.connect_ex(("127.0.0.1", port)) == 0:
                    break
            assert process.poll() is None
            assert time.monotonic() < until
            time.sleep(0.5)
        time.sleep(3)
        yield f"127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(30)


@pytest.fixture(scope="class")
def head() -> Iterator[str]:
    with cluster() as address:
        yield address


class TestSubmitit:
    @pytest.fixture(autouse=True)
    def submitit(self):
        pytest.importorskip("submitit", reason="submitit is not installed: pip install 'leakbench[submitit]'")

    def test_submitit_equals_the_engine_process(self, folder):
        assert ended(command(folder, "submitit", "--engine", "submitit", "--address", "local"))["run"] == CELLS
        assert_same(folder, "submitit")

    def test_a_killed_job_is_noticed_and_only_its_task_counts_as_lost(self, tmp_path):
        folder = tmp_path / "notes"
        folder.mkdir()
        engine = SubmititEngine(tmp_path / "jobs", workers=1, local=True, work=sweep_work.killed_once)
        outcomes = {o.key: (o.kind, o.tries) for o in engine(tasks(folder, 4))}
        assert outcomes == {**{key: ("done", 1) for key in "023"}, "1": ("done", 2)}

    def test_an_unknown_sbatch_parameter_and_a_missing_slurm_are_refused_in_one_line(self, tmp_path, monkeypatch):
        monkeypatch.setenv("PATH", str(tmp_path))
        with pytest.raises(InputError, match=r"^engine: submitit found no SLURM on this machine"):
            list(SubmititEngine(tmp_path)(tasks(tmp_path, 1)))
        for name in ("sbatch", "srun"):
            (tmp_path / name).write_text("#!/bin/sh\n")
            (tmp_path / name).chmod(0o755)
        with pytest.raises(InputError, match=r"^slurm: .*partitoin"):
            list(SubmititEngine(tmp_path, slurm={"partitoin": "gpu"})(tasks(tmp_path, 1)))
