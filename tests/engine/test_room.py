"""A lack of memory: halve the chunk, continue and report it; a single lane that does not fit is refused in one line."""

from __future__ import annotations

import dataclasses
import io
import threading
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from command_line import called
from safetensors.torch import load_file

from leakbench import cli
from leakbench.attack.recipe import Method
from leakbench.cell import Cell, Request, identity, resolve_cell
from leakbench.cell.cell import hand_out
from leakbench.core.errors import InputError, out_of_memory
from leakbench.core.progress import Reporter
from leakbench.core.types import Generators, Network
from leakbench.defense import Defense
from leakbench.defense.clip import ClipWhole
from leakbench.defense.noise import GaussianNoise
from leakbench.engine import budget
from leakbench.engine.memory import memory_of
from leakbench.engine.room import Room
from leakbench.execute import execute
from leakbench.experiment import stage_attack
from leakbench.experiment.stage_train import fresh_network
from leakbench.federated.client import client_update
from leakbench.federated.simulate import train
from leakbench.federated.view import View
from leakbench.storage.store import Run, open_run


def lacking() -> None:
    """Request more memory than any machine has, as PyTorch does on the CPU."""
    torch.empty(10**15)


def lacks(room: int, count: int) -> None:
    if count > room:
        lacking()


def numpy_lacks() -> None:
    np.empty(10**15)


def cuda_lacks() -> None:
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 78 GiB")


def cublas_lacks() -> None:
    raise RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`")


@pytest.mark.parametrize("lack", [lacking, numpy_lacks, cuda_lacks, cublas_lacks])
def test_memory_errors_are_recognised(lack: Any) -> None:
    with pytest.raises((RuntimeError, MemoryError)) as caught:
        lack()
    assert out_of_memory(caught.value)
    assert not out_of_memory(RuntimeError("mat1 and mat2 shapes cannot be multiplied"))
    assert not out_of_memory(ValueError("out of memory"))
    assert out_of_memory(ImportError("libtorch_cpu.so: failed to map segment from shared object"))
    assert not out_of_memory(ImportError("No module named 'opacus'"))


def test_lanes_are_halved_once_and_stay_halved() -> None:
    """Five of ten lanes fit: ten fail, then 5 and 5; the failed work's tensors are freed before the next attempt."""
    tried, said = list[slice](), list[str]()

    def work(where: slice) -> list[int]:
        tried.append(where)
        lacks(5, where.stop - where.start)
        return list(range(where.start, where.stop))

    room = Room("victims", 10, "lower it", said.append)
    done = list(room(slice(3, 13), work))
    assert done == [(slice(3, 8), [3, 4, 5, 6, 7]), (slice(8, 13), [8, 9, 10, 11, 12])]
    assert tried == [slice(3, 13), slice(3, 8), slice(8, 13)]
    assert said == ["not enough memory for 10 victims side by side: continuing with 5 at a time"]
    assert [where for where, _ in room(slice(0, 7), work)] == [slice(0, 5), slice(5, 7)]
    assert len(said) == 1


def test_tensors_of_failed_work_are_freed_before_the_next_attempt() -> None:
    import weakref  # noqa: PLC0415

    held = list[weakref.ref[torch.Tensor]]()
    alive = list[bool]()

    def work(where: slice) -> None:
        alive.append(any(ref() is not None for ref in held))
        large = torch.zeros(3)
        held.append(weakref.ref(large))
        around: list[Any] = [large]
        around.append(around)  # Like a pool's future and the error that it stores.
        lacks(1, where.stop - where.start)

    list(Room("victims", 4, "")(slice(0, 2), work))
    assert alive[:2] == [False, False]


@pytest.mark.slow
def test_an_odd_count_is_halved_and_a_single_lane_is_refused_in_one_line() -> None:
    tried = list[int]()

    def work(where: slice) -> None:
        tried.append(where.stop - where.start)
        lacking()

    with pytest.raises(InputError) as caught:
        list(Room("clients", 7, "lower --batch")(slice(0, 7), work))
    assert tried == [7, 4, 2, 1]
    line = "memory: not enough for one of the clients alone (tried to allocate 4000000000000000 bytes); lower --batch"
    assert str(caught.value) == line


def test_two_threads_that_lack_memory_halve_once_and_report_once() -> None:
    """While one of them lacks memory for ten, the other has continued with five."""
    said = list[str]()
    room = Room("victims", 10, "lower it", said.append)

    def work(where: slice) -> int:
        if where.stop - where.start > 5:
            room.most = 5
            lacking()
        return where.stop - where.start

    assert [many for _, many in room(slice(0, 10), work)] == [5, 5]
    assert said == [] and room.most == 5


def test_other_errors_are_not_memory_errors() -> None:
    def work(where: slice) -> None:
        raise RuntimeError("shapes differ")

    with pytest.raises(RuntimeError, match="shapes differ"):
        list(Room("victims", 4, "")(slice(0, 4), work))


@dataclasses.dataclass(frozen=True)
class Narrow:
    """A method that lacks memory for more than this many victims."""

    method: Any
    room: int
    asked: list[int]

    def __call__(self, views: tuple[View, ...], rngs: Generators) -> Any:
        self.asked.append(views[0].victims)
        # Draws before the failure must not be missing afterwards.
        drawn = [torch.randn(3, generator=rng) for rng in rngs] if views[0].victims > self.room else []
        lacks(self.room, views[0].victims)
        assert not drawn
        return self.method(views, rngs)


def small(**more: Any) -> Cell:
    asked = {
        "dataset": "digits", "attack": "inverting_gradients", "defense": "fed_sdp_client", "taps": ("type-2", "type-1"),
        "victims": 5, "networks": 1, "iterations": 2, "train_rounds": 0, "leak_batch": 1, "candidates": 10,
    }  # fmt: skip
    return resolve_cell(Request(**{**asked, **more}), None)


def narrowed(cell: Cell, room: int) -> tuple[Cell, list[int]]:
    asked = list[int]()
    method: Method = Narrow(cell.attack.method, room, asked)
    return dataclasses.replace(cell, attack=dataclasses.replace(cell.attack, method=method)), asked


def ran(cell: Cell, folder: Path, stream: io.StringIO | None = None) -> None:
    with open_run(folder, identity(cell, "test")) as run:
        execute(cell, run, Reporter(quiet=True, stream=stream or io.StringIO()))


def assert_same(folder: Path, expected: Path) -> None:
    """Compare rows and tensors; products of fewer victims differ in the last bits."""
    found, wanted = (pd.read_parquet(f / "rows.parquet") for f in (folder, expected))
    pd.testing.assert_frame_equal(found, wanted, rtol=1e-4, atol=1e-6)
    tensors, others = (load_file(f / "reconstructions.safetensors") for f in (folder, expected))
    assert tensors.keys() == others.keys()
    for name, tensor in tensors.items():
        torch.testing.assert_close(tensor, others[name], rtol=1e-3, atol=1e-4, equal_nan=True)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole") / "run"
    ran(small(), folder)
    return folder


@pytest.mark.slow
def test_a_halved_attack_gives_the_same_result_and_reports_it(tmp_path: Path, whole: Path) -> None:
    cell, asked = narrowed(small(), 2)
    stream = io.StringIO()
    ran(cell, tmp_path / "run", stream)
    assert_same(tmp_path / "run", whole)
    assert asked == [5, 3, 2, 2, 1] * 2
    assert stream.getvalue().splitlines() == [
        f"attack {tap}: not enough memory for {many} victims side by side: continuing with {half} at a time"
        for tap in ("type-2", "type-1")
        for many, half in ((5, 3), (3, 2))
    ]


@pytest.mark.slow
@pytest.mark.parametrize("room", [1, 2, 5])
def test_a_killed_halved_run_resumes_to_the_same_rows(tmp_path: Path, whole: Path, room: int) -> None:
    """Killed after a chunk of two victims of an original five; then there is memory for `room`."""
    folder = tmp_path / "run"
    cell, asked = narrowed(small(), 2)

    class Killed(Exception):
        pass

    def dies(phase: str, done: float, total: int | None) -> None:
        if (phase, done) == ("attack type-2", 2):
            raise Killed

    with pytest.raises(Killed), open_run(folder, identity(cell, "test")) as run:
        execute(cell, run, dies)
    assert asked == [5, 3, 2]
    cell, asked = narrowed(small(), room)
    ran(cell, folder)
    assert_same(folder, whole)
    assert asked[0] == 3


@pytest.mark.slow
def test_only_a_damaged_chunk_is_attacked_again(tmp_path: Path, whole: Path) -> None:
    folder = tmp_path / "run"
    cell, _ = narrowed(small(), 2)

    def dies(phase: str, done: float, total: int | None) -> None:
        if (phase, done) == ("attack type-1", 0):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), open_run(folder, identity(cell, "test")) as run:
        execute(cell, run, dies)
    (folder / "parts/type-2.round0.00002.safetensors").write_bytes(b"damaged")
    cell, asked = narrowed(small(), 5)
    ran(cell, folder)
    assert asked == [2, 5]
    assert_same(folder, whole)


@pytest.mark.long
def test_half_a_chunk_of_another_length_is_not_used(
    tmp_path: Path, whole: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tensors of a chunk of five are damaged; then a chunk of two replaces it, and is killed between its two files."""
    folder = tmp_path / "run"
    cell, _ = narrowed(small(), 5)

    def dies(phase: str, done: float, total: int | None) -> None:
        if (phase, done) == ("attack type-1", 0):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), open_run(folder, identity(cell, "test")) as run:
        execute(cell, run, dies)
    (folder / "parts/type-2.round0.00000.safetensors").write_bytes(b"damaged")
    cell, _ = narrowed(small(), 2)
    with monkeypatch.context() as patched:
        patched.setattr(Run, "write_rows", lambda *_: lacks(0, 1))
        with pytest.raises(RuntimeError):
            ran(cell, folder)
    ran(cell, folder)
    assert_same(folder, whole)


def test_a_point_with_the_same_leak_reuses_the_halved_chunks(tmp_path: Path) -> None:
    cell, asked = narrowed(small(defense="none"), 3)
    ran(cell, tmp_path / "run")
    assert asked == [5, 3, 2, 5]  # The second point tries five once, and reuses the rest.


def test_one_victim_that_does_not_fit_is_refused_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(stage_attack, "_attack_chunk", lambda *_: lacking())
    line = [
        "run",
        "--dataset",
        "digits",
        "--attack",
        "cpl",
        "--train-rounds",
        "0",
        "--victims",
        "3",
        "--networks",
        "1",
        "--taps",
        "type-2",
    ]
    code, out, err = called(monkeypatch, capsys, *line, "--quiet", "--out", str(tmp_path / "run"))
    assert (code, out) == (2, "")
    assert err.splitlines() == [
        "attack type-2: not enough memory for 3 victims side by side: continuing with 2 at a time",
        "attack type-2: not enough memory for 2 victims side by side: continuing with 1 at a time",
        "leakbench: memory: not enough for one of the victims alone (tried to allocate 4000000000000000 bytes); lower --leak-batch,"
        " --observations or the restarts of the attack, or take a smaller --leak-model",
    ]  # fmt: skip


def test_other_memory_errors_are_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(cli.commands, "main", lambda **_: lacking())
    code, out, err = called(monkeypatch, capsys, "run")
    assert (code, out) == (2, "")
    assert err.startswith("leakbench: memory: not enough (tried to allocate") and "--clients-per-round" in err


def test_the_rehearsal_reports_a_lack_of_memory(tmp_path: Path) -> None:
    cell, _ = narrowed(small(protocol="live", taps=("type-1",), train_rounds=1, batch=2, clients=6), 0)
    with pytest.raises(InputError, match="memory: not enough for one of the victims alone"):
        ran(cell, tmp_path / "run")


NOISY = Defense(
    title="t",
    cite="c",
    unit="example",
    example=(ClipWhole(1.0), GaussianNoise(0.1, "each")),
    client=(GaussianNoise(0.1, "each", uncalibrated=True),),
)


@pytest.mark.slow
@pytest.mark.parametrize("threads", [1, 2])
def test_halved_training_gives_the_same_model_and_reports_it(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    cell = dataclasses.replace(
        small(protocol="live", taps=("type-1",), clients=9, clients_per_round=7, train_rounds=2, batch=2), defense=NOISY
    )
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        wanted, _, said = rounds_of(cell, 7)
        assert said == []
        with monkeypatch.context() as patched:
            patched.setattr("leakbench.federated.simulate.lanes_per_chunk", lambda *_: 7)
            found, most, said = rounds_of(cell, 2)
    finally:
        torch.set_num_threads(before)
    for name, tensor in wanted.items():
        torch.testing.assert_close(found[name], tensor, rtol=1e-4, atol=1e-6)
    assert most == 2
    assert said[-1].endswith("continuing with 2 at a time") and len(said) <= 2


def rounds_of(cell: Cell, room: int) -> tuple[dict[str, torch.Tensor], int, list[str]]:
    """Train with memory for this many clients; return the last model, the largest chunk and the messages."""
    said = list[str]()
    with pytest.MonkeyPatch.context() as patched:
        fitted = narrow_clients(patched, room)
        model, start = fresh_network(cell, trained=True)
        s = cell.settings
        run = partial(train, Network(model, start), cell.data, hand_out(cell), s.federation, cell.defense, 0)
        *_, last = run(say=said.append)
    return last.parameters, max(fitted), said


def narrow_clients(patched: pytest.MonkeyPatch, room: int) -> list[int]:
    """Limit memory to this many clients; return the list of sizes that fitted."""
    fitted, plain, lock = list[int](), client_update, threading.Lock()

    def narrow(network: Network, examples: Any, *rest: Any, **named: Any) -> Any:
        done = plain(network, examples, *rest, **named)  # After it has drawn its noise.
        lacks(room, len(examples.inputs))
        with lock:
            fitted.append(len(examples.inputs))
        return done

    patched.setattr("leakbench.federated.simulate.client_update", narrow)
    return fitted


@pytest.mark.slow
def test_a_run_reports_halved_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    narrow_clients(monkeypatch, 3)
    cell = small(protocol="live", taps=("type-1",), clients=6, clients_per_round=4, train_rounds=2, batch=2)
    stream = io.StringIO()
    ran(cell, tmp_path / "run", stream)
    line = "train: not enough memory for 4 clients side by side: continuing with 2 at a time"
    assert stream.getvalue().splitlines() == [line]


@pytest.mark.slow
def test_a_client_that_does_not_fit_is_refused_in_one_line() -> None:
    cell = small(protocol="live", taps=("type-1",), clients=5, train_rounds=1, batch=2)
    with pytest.raises(InputError, match=r"not enough for one of the clients alone .*; lower --batch or --local-iter"):
        rounds_of(cell, 0)


def test_a_small_machine_gets_smaller_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    there = memory_of(torch.device("cpu"))
    assert 10**8 < there < 10**14
    monkeypatch.setattr(budget, "memory_of", lambda _: 400)
    assert budget.memory_budget(torch.device("cpu")) == 100
