"""Engines of sweeps: every task is done, tasks of lost workers are repeated, and no process remains after any end."""

import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest
import sweep_work
import torch
from sweep_work import tasks

from leakbench.core.errors import InputError
from leakbench.study import on_submitit, workers
from leakbench.study.on_ray import RayEngine, check_address
from leakbench.study.on_submitit import SubmititEngine
from leakbench.study.process import ProcessEngine
from leakbench.study.task import Task, TaskOutcome
from leakbench.study.workers import INSIDE, in_flight, refuse_inside
from tests.offline import python_path

HOME = Path(__file__).parents[2]


def begun(folder: Path) -> dict[str, list[int]]:
    """Return {key: workers that began it}."""
    found: dict[str, list[int]] = {}
    for path in sorted(folder.glob("*.*")):
        found.setdefault(path.stem, []).append(int(path.read_text().split()[0]))
    return found


def alive(pid: int) -> bool:
    """Say whether a process still runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def test_every_task_is_done_once_by_few_workers(tmp_path):
    engine = ProcessEngine(2, threads=3, work=sweep_work.noted)
    outcomes = list(engine(tasks(tmp_path, 9)))
    assert sorted(outcome.key for outcome in outcomes) == [str(n) for n in range(9)]
    assert {outcome.tries for outcome in outcomes} == {1}
    assert len({outcome.run for outcome in outcomes}) == 2
    assert {path.read_text().split()[1] for path in tmp_path.iterdir()} == {"3"}
    assert not any(alive(int(outcome.run)) for outcome in outcomes)
    assert "LEAKBENCH_SWEEP_WORKER" not in os.environ


def test_a_killed_worker_is_noticed_and_its_task_repeated(tmp_path):
    outcomes = {o.key: o for o in ProcessEngine(2, work=sweep_work.killed_once)(tasks(tmp_path, 4))}
    assert {key: (o.kind, o.tries) for key, o in outcomes.items()} == {
        **{key: ("done", 1) for key in "023"},
        "1": ("done", 2),
    }


def test_a_task_that_kills_its_workers_is_given_up_and_the_others_are_done(tmp_path):
    outcomes = {o.key: o for o in ProcessEngine(2, work=sweep_work.killed_always)(tasks(tmp_path, 4))}
    assert {key: o.kind for key, o in outcomes.items()} == {"0": "done", "1": "lost", "2": "done", "3": "done"}
    assert outcomes["1"].error == "its worker was lost each of 4 times"
    assert len(begun(tmp_path)["1"]) == 4


def test_a_sweep_within_a_sweep_is_refused(tmp_path):
    [outcome] = ProcessEngine(1, work=sweep_work.nested)(tasks(tmp_path, 1))
    assert outcome.error == "sweep: this is a worker of the engine process already; start the sweep outside of it"


DRIVER = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.path.insert(0, {tests!r})
from contextlib import closing
from pathlib import Path
import sweep_work
from leakbench.study.process import ProcessEngine
from leakbench.study.workers import listening

if __name__ == "__main__":
    try:
        with listening(), closing(ProcessEngine(2, work=sweep_work.endless)(sweep_work.tasks(Path({folder!r}), 9))) as all:
            list(all)
    except KeyboardInterrupt:
        sys.exit(130)
"""


def _heeds(number):
    """Let this signal end the process, also if the tests run below nohup."""
    if number != signal.SIGKILL:
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_every_end_of_a_sweep_ends_its_workers(number, tmp_path):
    script = tmp_path / "driver.py"
    folder = tmp_path / "notes"
    folder.mkdir()
    script.write_text(DRIVER.format(tests=str(HOME / "tests"), folder=str(folder)))
    driver = subprocess.Popen(
        [sys.executable, str(script)],
        env={**os.environ, "PYTHONPATH": python_path(HOME)},
        preexec_fn=partial(_heeds, number),  # noqa: PLW1509 - it starts no thread
    )
    try:
        until = time.monotonic() + 60
        while len(workers := [pid for pids in begun(folder).values() for pid in pids]) < 2:
            assert time.monotonic() < until
            time.sleep(0.05)
        asked = time.monotonic()
        driver.send_signal(number)
        assert driver.wait(10) == (-9 if number == signal.SIGKILL else 130)
        while any(map(alive, workers)):
            assert time.monotonic() < asked + 5
            time.sleep(0.05)
    finally:
        driver.kill()
        driver.wait()


class Recording:
    """A crew that records how many tasks are in flight, and ends the latest first."""

    def __init__(self) -> None:
        self.flying: list[Task] = []
        self.most = 0

    def begin(self, task: Task) -> None:
        self.flying.append(task)
        self.most = max(self.most, len(self.flying))

    def ended(self) -> list[tuple[Task, TaskOutcome | None]]:
        task = self.flying.pop()
        return [(task, TaskOutcome(task.key, "done"))]


def test_the_window_limits_the_tasks_in_flight(tmp_path):
    crew = Recording()
    taken = []
    source = (taken.append(task) or task for task in tasks(tmp_path, 200))
    outcomes = in_flight(source, crew, 64)
    next(outcomes)
    assert (len(taken), crew.most) == (64, 64)
    assert len(list(outcomes)) == 199
    assert crew.most == 64


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("nowhere", "address: got 'nowhere', expected HOST:PORT"),
        ("host:99999", "address: got 'host:99999', expected HOST:PORT"),
        ("ray://host:10001", "address: got 'ray://host:10001', expected HOST:PORT"),
        ("127.0.0.1:{closed}", "(Connection refused)"),
        ("127.0.0.1:{silent}", "(timed out)"),
        ("127.0.0.1:{other}", "(the program at this address is not a head of Ray)"),
    ],
)
def test_an_address_without_ray_is_refused_within_seconds(address, words, ports):
    began = time.monotonic()
    with pytest.raises(InputError) as refused:
        check_address(address.format(**ports), seconds=1.0)
    assert words in str(refused.value)
    assert time.monotonic() - began < 2


@pytest.fixture
def ports():
    """Return a closed port, one that never responds, and one with another protocol."""
    import socket  # noqa: PLC0415
    import threading  # noqa: PLC0415

    with socket.create_server(("127.0.0.1", 0)) as free:
        closed = free.getsockname()[1]
    with socket.create_server(("127.0.0.1", 0)) as silent, socket.create_server(("127.0.0.1", 0)) as other:

        def answer() -> None:
            try:
                line, _ = other.accept()
            except OSError:
                return
            with line:
                line.sendall(b"HTTP/1.1 400 Bad Request\r\n")

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        yield {"closed": closed, "silent": silent.getsockname()[1], "other": other.getsockname()[1]}
        other.shutdown(socket.SHUT_RDWR)
        thread.join(5)


@pytest.mark.parametrize(
    ("says", "refused"),
    [("echo '(null)'", True), ("echo 'gpu:h100:8'", False), ("exit 1", False), ("exec sleep 9", False), (None, False)],
)
def test_more_gpus_than_slurm_has_are_refused(says, refused, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path) + os.pathsep + os.environ["PATH"])
    monkeypatch.setattr(on_submitit, "ASKED", 0.3)
    if says is not None:
        (tmp_path / "sinfo").write_text(f"#!/bin/sh\n{says}\n")
        (tmp_path / "sinfo").chmod(0o755)
    if refused:
        with pytest.raises(InputError, match="gpus-per-cell: SLURM has no node with a GPU"):
            on_submitit.check_gpus(local=False)
    else:
        on_submitit.check_gpus(local=False)


def test_more_gpus_than_this_machine_has_are_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    with pytest.raises(InputError, match="gpus-per-cell: this machine has no GPU"):
        on_submitit.check_gpus(local=True)


def test_a_sweep_inside_a_slurm_job_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv(INSIDE, "")
    monkeypatch.delenv(INSIDE)
    on_submitit._do_all(tasks(tmp_path, 1), tmp_path, sweep_work.noted)
    with pytest.raises(InputError, match="this is a worker of the engine submitit already"):
        refuse_inside()


@pytest.mark.parametrize("package", ["ray", "submitit"])
def test_a_missing_package_is_refused_with_the_install_command(package, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, package, None)
    engine = RayEngine() if package == "ray" else SubmititEngine(tmp_path)
    with pytest.raises(
        InputError, match=rf"^engine: {package} is not installed; pip install 'leakbench\[{package}\]'$"
    ):
        list(engine(tasks(tmp_path, 1)))


def test_a_broken_package_is_reported_with_the_reason(monkeypatch):
    def broken(name: str) -> None:
        raise ImportError("libfoo.so: no such file", name="libfoo")

    monkeypatch.setattr(workers.importlib, "import_module", broken)
    with pytest.raises(InputError, match=r"^engine: ray cannot be imported \(libfoo.so: no such file\); pip install"):
        workers.needed("ray")


@pytest.mark.slow
def test_sweeps_are_imported_without_ray_and_submitit():
    """The engines that need them import them at their start."""
    code = (
        "import sys; sys.modules.update(ray=None, submitit=None); import leakbench.study.engines, leakbench.study.study"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env={**os.environ, "PYTHONPATH": python_path(HOME)})


def test_a_worker_starts_without_pytorch():
    """It is imported with the first cell: a worker that is lost at once is noticed at once."""
    code = "import sys, leakbench.study.process; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, env={**os.environ, "PYTHONPATH": python_path(HOME)})
