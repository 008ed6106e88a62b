"""Every search of the catalog gives the same rows with replayed evaluations and without."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
import torch

from leakbench.attack import Attack
from leakbench.attack.servers.fishing import fished
from leakbench.attack.slots.stop import limited
from leakbench.cell import Request, identity
from leakbench.cell.budget import prepare
from leakbench.core.recipe import catalog_folder, load, names
from leakbench.engine import replayed
from leakbench.execute import execute
from leakbench.storage.store import open_run

ELSEWHERE = ("cpl_black", "cpl_colour", "cpl_grey", "cpl_normal", "cpl_tile", "cpl_uniform", "cpl_white")
"""Attacks that are CPL from another start."""

SEARCHES = [
    name
    for name in names("attacks")
    if limited(load(Attack, catalog_folder("attacks") / f"{name}.yaml").method, 2) and not name.startswith(ELSEWHERE)
]

LARGE = {"see_through", "see_through_no_batch_norm", "inverting_gradients_batch_norm"}
"""Their network is a ResNet-18."""

DEFENDED = (
    *("censor", "dcs2", "fed_cdp", "fedkl", "graddefense", "instahide", "noise_gaussian", "nvflare_svt", "oasis"),
    *("outpost", "precode", "prune_threshold", "qsgd", "sign", "soteria"),
)
"""Defenses of which an attacker runs something on its guess."""


AS_THEY_ARE = {"fed_cdp"}
"""Those whose clip asks for the largest norm."""


def rows(folder: Path, **asked: object) -> pd.DataFrame:
    small = {"victims": 2, "candidates": 10, "train_rounds": 0, "taps": ("type-2", "type-1"), "leak_batch": 1}
    cell = prepare(Request(**{**small, **asked}), None)
    with open_run(folder, identity(cell, "test")) as run:
        execute(cell, run, lambda *_: None)
    return pd.read_parquet(folder / "rows.parquet")


def compare(folder: Path, monkeypatch: pytest.MonkeyPatch, **asked: object) -> tuple[int, int]:
    """Compare the rows of both; return the number of replays and the largest number of evaluations of a row."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    count, plain = 0, replayed._Replay.__call__

    def counted(self: replayed._Replay, point: torch.Tensor, wait: bool = True) -> tuple[torch.Tensor, ...]:
        nonlocal count
        count += 1
        return plain(self, point, wait)

    monkeypatch.setattr(replayed._Replay, "__call__", counted)
    try:
        monkeypatch.setattr(replayed, "AFTER", 10**9)
        without = rows(folder / "without", **asked)
        assert count == 0
        monkeypatch.setattr(replayed, "AFTER", 2)
        pd.testing.assert_frame_equal(rows(folder / "with", **asked), without, check_exact=True)
    finally:
        torch.set_num_threads(before)
    return count, int(without["evaluations"].max())


def of(name: str) -> dict[str, object]:
    """Return what a cell with an attack asks for."""
    attack = load(Attack, catalog_folder("attacks") / f"{name}.yaml")
    # No face has the class that the server fishes for.
    pictures = "faces" if fished(attack.server) is None else "digits"
    dataset = "cancer" if attack.needs.table else "reviews" if attack.needs.text else pictures
    inner = hasattr(getattr(attack.method, "descent", None), "inner")
    asked = {"attack": name, "dataset": dataset, "iterations": 2 if inner else 8}
    if attack.needs.text:
        asked |= {"victims": 1, "taps": ("type-2",), "iterations": 8, "candidates": 2}
    return asked | ({"victim_mode": "eval", "candidates": 2, "victims": 1} if name in LARGE else {})


def test_cpl_and_its_replays_give_the_same_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    replays, evaluations = compare(tmp_path, monkeypatch, **of("cpl"))
    assert replays > evaluations > 20


@pytest.mark.slow
@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.long] * (n in LARGE)) for n in SEARCHES])
def test_an_attack_and_its_replays_give_the_same_rows(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replays, evaluations = compare(tmp_path, monkeypatch, **of(name))
    assert (replays > 0) == (evaluations > 3)


@pytest.mark.slow
@pytest.mark.parametrize("name", DEFENDED)
def test_a_search_through_a_defense_and_its_replays_give_the_same_rows(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replays, _ = compare(tmp_path, monkeypatch, **{**of("inverting_gradients"), "defense": name, "knows": "defense"})
    assert (replays > 0) == (name not in AS_THEY_ARE)
