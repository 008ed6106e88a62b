"""Victims of a leak at random weights are spread over several draws of the initial weights."""

import shutil
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from safetensors.torch import load_file

from leakbench.cell import Cell, Request, resolve_cell
from leakbench.core.errors import InputError
from leakbench.core.progress import Reporter
from leakbench.execute import execute
from leakbench.experiment.stage_train import fresh_network
from leakbench.storage.rows_file import read_rows
from leakbench.storage.store import open_run

QUICK: dict[str, Any] = {
    "dataset": "digits",
    "attack": "whitened",
    "iterations": 2,
    "train_rounds": 0,
    "taps": ("type-2", "type-1"),
    "leak_batch": 2,
    "candidates": 12,
}


def cell(**asked: Any) -> Cell:
    return resolve_cell(Request(**{**QUICK, **asked}), None)


def measured(some: Cell, folder: Path) -> tuple[pd.DataFrame, dict[str, torch.Tensor], dict[str, Any]]:
    with open_run(folder, {"hash": some.hash, "cell": some.names, "command": "test"}) as run:
        summary = execute(some, run, Reporter(quiet=True)).as_dict()
    return read_rows(folder / "rows.parquet"), load_file(folder / "reconstructions.safetensors"), summary


def test_the_default_is_five_networks_and_at_most_one_for_each_victim() -> None:
    assert [cell(victims=v).settings.networks for v in (1, 3, 5, 10)] == [1, 3, 5, 5]
    assert cell(victims=10, networks=2).settings.networks == 2
    assert cell(victims=2, protocol="live", leak_rounds=("0",), train_rounds=1).settings.networks == 1


def test_one_network_keeps_the_identity_of_older_cells() -> None:
    one, several = cell(victims=10, networks=1), cell(victims=10)
    assert one.hash != several.hash
    assert cell(victims=1).hash == cell(victims=1, networks=1).hash
    assert cell(victims=10, protocol="live", leak_rounds=("0",)).settings.networks == 1


def test_more_networks_than_victims_and_networks_of_a_training_are_refused() -> None:
    with pytest.raises(InputError, match="networks: got 4, expected at most the number of victims"):
        cell(victims=3, networks=4)
    with pytest.raises(InputError, match="networks: got 0, expected at least 1"):
        cell(networks=0)
    with pytest.raises(InputError, match="networks: got 5, but the live protocol"):
        cell(networks=5, protocol="live")


def test_draws_have_different_weights_and_the_first_equals_one_network() -> None:
    some = cell(victims=6)
    weights = [torch.cat([p.flatten() for p in fresh_network(some, False, n)[1].values()]) for n in range(3)]
    assert not any(torch.equal(weights[a], weights[b]) for a, b in ((0, 1), (0, 2), (1, 2)))
    alone = torch.cat([p.flatten() for p in fresh_network(cell(victims=1), False)[1].values()])
    assert torch.equal(weights[0], alone)


@pytest.mark.slow
def test_victims_alternate_between_networks_and_stay_in_order(tmp_path: Path) -> None:
    """Victim v is attacked at draw v modulo 3; victims of the first draw have the same rows as with one network."""
    several, tensors, summary = measured(cell(victims=7, networks=3), tmp_path / "several")
    one, of_one, _ = measured(cell(victims=7, networks=1), tmp_path / "one")
    for tap in ("type-2", "type-1"):
        rows, alone = (found[found["tap"] == tap].reset_index(drop=True) for found in (several, one))
        assert (rows["network"] == rows["victim"] % 3).all() and not alone["network"].any()
        assert rows[["victim", "member", "example"]].equals(alone[["victim", "member", "example"]])
        first = rows["network"] == 0
        pd.testing.assert_series_equal(rows.loc[first, "rmse"], alone.loc[first, "rmse"], rtol=0.05)
        assert (rows.loc[~first, "rmse"] != alone.loc[~first, "rmse"]).mean() > 0.5  # A search may end at its start.
        truth, answers = (f"{tap}.round0.{what}" for what in ("truth", "reconstruction"))
        assert torch.equal(tensors[truth], of_one[truth])
        apart = (tensors[answers] - tensors[truth]).flatten(2).square().mean(2).sqrt().flatten()
        torch.testing.assert_close(apart, torch.tensor(rows["rmse"].to_numpy(), dtype=apart.dtype))
        assert summary["taps"][tap]["networks"] == 3


@pytest.mark.slow
def test_a_run_interrupted_between_networks_ends_with_the_same_rows(tmp_path: Path) -> None:
    some = cell(victims=5, networks=2)
    whole, tensors, _ = measured(some, tmp_path / "whole")

    class Cut(Exception):
        pass

    def progress(phase: str, done: float, total: int) -> None:
        if phase.startswith("attack type-1") and done >= 3:
            raise Cut

    folder = tmp_path / "cut"
    with pytest.raises(Cut), open_run(folder, {"hash": some.hash, "cell": some.names, "command": "test"}) as run:
        execute(some, run, progress)  # type: ignore[arg-type]
    assert sorted(p.name for p in (folder / "parts").glob("type-1*.parquet")) == [
        "type-1.round0.network0.00000.parquet"
    ]
    rows, again, _ = measured(some, folder)
    pd.testing.assert_frame_equal(rows, whole)
    assert all(
        torch.equal(again[name], tensors[name]) for name in ("type-1.round0.reconstruction", "type-2.round0.truth")
    )
    shutil.rmtree(folder)
