"""The device of a cell: chosen automatically, reported, without operations between two devices; on a GPU as on the CPU."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from command_line import called
from far import FAR, Elsewhere

from leakbench.cell import Cell, Request, identity, resolve_cell
from leakbench.cell.cell import hand_out, identified
from leakbench.cell.device import described, device_of
from leakbench.core.errors import InputError
from leakbench.core.rng import drawn_on, generators, keyed, normal
from leakbench.core.types import Network
from leakbench.execute import execute
from leakbench.experiment.stage_train import fresh_network
from leakbench.federated.simulate import train
from leakbench.storage.store import open_run

needs_gpu = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="no GPU, or hidden: run `pytest -m cuda` where one is"
)

counted = pytest.mark.skipif(
    not hasattr(torch.ops.aten, "_philox_normal_"), reason="this PyTorch has no counter-based generator"
)

SMALL = {
    "dataset": "digits", "victims": 2, "leak_batch": 1, "iterations": 2, "train_rounds": 0, "candidates": 10,
    "taps": ("type-2", "type-1"),
}  # fmt: skip


def cell(**more: Any) -> Cell:
    return resolve_cell(Request(**{**SMALL, **more}), None)


def on(device: str, some: Cell) -> Cell:
    return dataclasses.replace(some, settings=dataclasses.replace(some.settings, device=device))


def rows_of(some: Cell, folder: Path) -> pd.DataFrame:
    with open_run(folder, identity(some, "test")) as run:
        execute(some, run, lambda *_: None)
    return pd.read_parquet(folder / "rows.parquet").drop(columns="fit_seconds")


def test_auto_is_a_gpu_where_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = list[bool]()
    for there in (True, False):
        asked.append(there)
        monkeypatch.setattr(torch.cuda, "is_available", lambda: asked[-1])
        monkeypatch.setattr(torch, "zeros", lambda *_, device: torch.empty(0))
        assert device_of("auto") == torch.device("cuda" if there else "cpu")
        assert device_of("cpu") == torch.device("cpu")


def test_a_missing_device_is_refused() -> None:
    with pytest.raises(InputError, match="'cuda:77' cannot be used"):
        device_of("cuda:77")
    with pytest.raises(InputError, match="device: 'cpu:1': all cores are one device, which is cpu"):
        device_of("cpu:1")
    assert str(device_of("cpu:0")) == "cpu"


def test_a_gpu_uses_full_single_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "zeros", lambda *_, device: torch.empty(0))
    products, convolutions = torch.backends.cuda.matmul, torch.backends.cudnn
    before = products.allow_tf32, convolutions.allow_tf32
    try:
        products.allow_tf32 = convolutions.allow_tf32 = True
        device_of("cpu")
        assert products.allow_tf32 and convolutions.allow_tf32
        device_of("cuda")
        assert not products.allow_tf32 and not convolutions.allow_tf32
    finally:
        products.allow_tf32, convolutions.allow_tf32 = before


def test_a_cell_on_the_cpu_is_the_same_by_request_or_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    """The identity of measurements on CPUs stays, and so do results of scripts."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    found, asked = cell(device="auto"), cell(device="cpu")
    assert found.hash == asked.hash == cell().hash
    assert identity(found, "test")["device"] == "cpu"


def test_a_cell_is_the_same_on_every_device() -> None:
    """A row that a GPU measured is checked and read on a machine without one; the manifest names the device."""
    here = cell()
    settings = dataclasses.replace(here.settings, device="cuda:0")
    there = identified(dataclasses.replace(here, settings=settings, hash=""))
    assert there.hash == here.hash
    assert identified(dataclasses.replace(here, settings=dataclasses.replace(settings, seed=1))).hash != here.hash


LINE = [
    "run",
    "--dataset",
    "digits",
    "--attack",
    "identification",
    "--victims",
    "1",
    "--train-rounds",
    "0",
    "--candidates",
    "5",
]


@pytest.mark.slow
def test_a_device_other_than_the_cpu_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stops(*_: object) -> None:
        raise InputError("so far")

    monkeypatch.setattr("leakbench.api.execute", stops)
    code, out, err = called(monkeypatch, capsys, *LINE, "--out", str(tmp_path / "cpu"))
    assert (code, out, err) == (2, "", "leakbench: so far\n")
    monkeypatch.setattr("leakbench.cell.resolve.device_of", lambda _: FAR)
    with Elsewhere():
        code, out, err = called(monkeypatch, capsys, *LINE, "--quiet", "--json", "--out", str(tmp_path / "far"))
    assert (code, out, err) == (2, "", "device: meta\nleakbench: so far\n")


LIVE = {"protocol": "live", "train_rounds": 1, "clients": 3, "local_iterations": 2, "batch": 2}

CELLS = {
    "training": {"attack": "identification", "iterations": None, "defense": "fed_cdp_valid", **LIVE},
    "l-bfgs": {"attack": "cpl", "defense": "fed_sdp_client"},
    "batch": {"attack": "inverting_gradients", "leak_batch": 2},
    "cosine": {"attack": "inverting_gradients"},
    "features": {"attack": "feature_inversion", "leak_model": "cnn_avg_relu", "victims": 1},
    "whitened": {"attack": "whitened_public", "defense": "noise_gaussian"},
    "table": {"attack": "tableak", "dataset": "cancer"},
    "server": {"attack": "fishing", "leak_batch": 2},
    "learned": {"attack": "lmmse", "iterations": None},
}


@pytest.mark.slow
@pytest.mark.parametrize("given", CELLS.values(), ids=CELLS)
def test_no_operation_mixes_two_devices(given: dict[str, Any], tmp_path: Path) -> None:
    """A whole cell on a device that is the CPU under another name: no operation mixes devices, and the rows are bit-identical."""
    some = cell(**{"iterations": 1, "taps": ("type-1",), **given})
    expected = rows_of(some, tmp_path / "cpu")
    with Elsewhere():
        found = rows_of(on("meta", some), tmp_path / "far")
    pd.testing.assert_frame_equal(found, expected, check_exact=True)


def test_operations_on_two_devices_are_found() -> None:
    """The fake device accepts what CUDA accepts, and no more."""
    with Elsewhere():
        far = torch.arange(6.0).reshape(2, 3).to(FAR)
        assert (far.sum(1) * torch.tensor(2.0)).tolist() == [6.0, 24.0]
        assert far[torch.tensor([1])].cpu().tolist() == [[3.0, 4.0, 5.0]]
        assert far.device == FAR and far.cpu().device.type == "cpu"
        for mixed in (
            lambda: far + torch.ones(3),
            lambda: torch.ones(2, 3)[far[:, 0].long()],
            lambda: far.new_zeros(3).index_put_((torch.tensor([0, 1]),), torch.ones(2)),
            lambda: torch.cat([far, torch.ones(1, 3)]),
        ):
            with pytest.raises(RuntimeError, match="tensors of two devices"):
                mixed()
        with pytest.raises(TypeError, match="numpy"):
            far.numpy()


@pytest.mark.cuda
@needs_gpu
def test_an_attack_on_a_gpu_reconstructs_as_many_as_on_the_cpu(tmp_path: Path) -> None:
    """CPL on 20 undefended faces: the same victims are reconstructed up to rounding, and the command reports its device."""
    some = resolve_cell(
        Request(attack="cpl", victims=20, iterations=100, leak_batch=1, train_rounds=0, taps=("type-2",)), None
    )
    found, expected = (rows_of(on(device, some), tmp_path / device) for device in ("cuda", "cpu"))
    assert found["example"].tolist() == expected["example"].tolist()
    off = abs(found["success"].mean() - expected["success"].mean())
    assert off <= 2 * (2 * 0.25 / 20) ** 0.5
    assert found["identified"].tolist() == expected["identified"].tolist()
    assert "cuda" in described(device_of("auto"))


@pytest.mark.cuda
@needs_gpu
@pytest.mark.parametrize(
    "defended", [{}, {"defense": "fed_cdp_valid", "noise_factor": 1e-6}, {"defense": "fed_cdp", "noise_factor": 1e-6}]
)
def test_training_on_a_gpu_equals_training_on_the_cpu(defended: dict[str, Any]) -> None:
    """The same batches, and noise too small to matter: after three rounds weights differ only by rounding."""
    device_of("cuda")
    plain = cell(**defended, protocol="live", train_rounds=3, clients=6, clients_per_round=4, batch=3)
    there = trained(on("cuda", plain))
    for name, weights in trained(plain).items():
        torch.testing.assert_close(there[name], weights, rtol=1e-3, atol=1e-5)


def trained(some: Cell) -> dict[str, torch.Tensor]:
    """Return the weights after the training of a cell."""
    model, start = fresh_network(some, trained=True)
    f = some.settings.federation
    *_, last = train(Network(model, start), some.data, hand_out(some), f, some.defense, 0)
    return {n: p.cpu() for n, p in last.parameters.items()}


NOISY = {
    "defense": "fed_cdp_valid", "protocol": "live", "train_rounds": 2, "clients": 6, "clients_per_round": 4, "batch": 3,
    "local_iterations": 3,
}  # fmt: skip


@counted
@pytest.mark.slow
def test_counted_noise_of_a_training_does_not_depend_on_the_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four clients together and one by one have the same noise of sigma 6; drawn as on a GPU, by the CPU."""
    plain = trained(cell(**NOISY))
    monkeypatch.setattr("leakbench.federated.client.drawn_on", keyed)
    states = []
    for lanes in (4, 1):
        monkeypatch.setattr("leakbench.federated.simulate.lanes_per_chunk", lambda *_, n=lanes, **__: n)
        states.append(trained(cell(**NOISY)))
    for name, weights in states[0].items():
        torch.testing.assert_close(states[1][name], weights, rtol=1e-4, atol=1e-5)
        assert (plain[name] - weights).abs().max() > 0.01


@counted
@pytest.mark.cuda
@needs_gpu
def test_noise_of_a_gpu_is_that_of_the_same_counters_on_the_cpu() -> None:
    like, rngs = torch.zeros(4, 1, 100_000), [generators(3, "noise", [(lane,) for lane in range(4)]) for _ in range(2)]
    there, here = drawn_on(rngs[0], torch.device("cuda")), keyed(rngs[1], torch.device("cpu"))
    for _ in range(2):
        torch.testing.assert_close(normal(like.cuda(), there, 2).cpu(), normal(like, here, 2), rtol=1e-4, atol=1e-5)


@counted
@pytest.mark.cuda
@needs_gpu
def test_a_noisy_training_on_a_gpu_equals_one_on_the_cpu_with_the_same_counters(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    device_of("cuda")
    there = trained(on("cuda", cell(**NOISY)))
    monkeypatch.setattr("leakbench.federated.client.drawn_on", keyed)
    for name, weights in trained(cell(**NOISY)).items():
        torch.testing.assert_close(there[name], weights, rtol=1e-3, atol=1e-4)
