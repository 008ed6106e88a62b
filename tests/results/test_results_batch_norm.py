"""The page of batch normalisation matches its rows, and its rows match its claims."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pandas as pd
import pytest
import torch

from leakbench.attack.one_step import answered_at_once
from leakbench.cell.cell import hand_out
from leakbench.experiment.victims import draw_victims, truth
from tests.published_files import STUDIES, published_file


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(STUDIES))
    sys.modules.pop("batch_norm_page", None)
    import batch_norm_page  # noqa: PLC0415

    return batch_norm_page


@pytest.fixture
def rows() -> pd.DataFrame:
    return pd.read_csv(published_file("batch_norm.csv"))


def test_the_page_is_rendered_from_its_rows(made: ModuleType, rows: pd.DataFrame) -> None:
    published = published_file("batch_norm.md").read_text(encoding="utf-8")
    assert made.page(rows) == published
    assert made.page(rows.assign(rmse=rows["rmse"] / 2)) != published


def test_every_attacker_reads_the_same_images_of_a_batch_size(made: ModuleType, rows: pd.DataFrame) -> None:
    """Also early and late, with the same baseline guess."""
    whole = made.complete(rows)
    for _, of_size in whole.groupby("batch"):
        first, *others = [
            group[["network", "victim", "example", "null_rmse", "eta"]].reset_index(drop=True)
            for _, group in of_size.groupby(["stage", "mode", "statistics"])
        ]
        assert len(others) >= 8
        for other in others:
            pd.testing.assert_frame_equal(other, first)


def test_the_true_images_explain_the_gradient_unless_the_attacker_normalises_otherwise(rows: pd.DataFrame) -> None:
    """Their cosine distance is a rounding error for every attacker but `running`, with and without knowledge."""
    other = rows["statistics"] == "running"
    assert rows.loc[~other, "distance_of_truth"].abs().max() < 1e-5
    assert rows.loc[other, "distance_of_truth"].min() > 0.1


def test_solved_statistics_are_those_of_the_batch(rows: pd.DataFrame) -> None:
    """Those of public examples are not."""
    trained = rows[rows["mode"] == "train"]
    assert trained["error_inferred"].max() < 1e-3
    assert trained["error_proxy"].min() > 0.01


def test_incomplete_networks_are_left_out(made: ModuleType, rows: pd.DataFrame) -> None:
    """A network that lacks one cell of a batch size does not count there."""
    cell = rows["row"].iloc[0]
    batch, network = rows[["batch", "network"]].iloc[0]
    left = made.complete(rows[rows["row"] != cell])
    gone = (made.complete(rows)["batch"] == batch) & (made.complete(rows)["network"] == network)
    assert len(left) == len(made.complete(rows)) - gone.sum()


def test_the_verdict_follows_from_the_rows(made: ModuleType, rows: pd.DataFrame) -> None:
    """For one image, neither the mode nor the victim's statistics make much of a difference; the server's statistics do."""
    whole = made.complete(rows)
    single = whole[whole["batch"] == 1]

    def mean(stage: str, mode: str, statistics: str) -> float:
        at = (single["stage"] == stage) & (single["mode"] == mode) & (single["statistics"] == statistics)
        return float(single.loc[at, "rmse"].mean())

    null = single["null_rmse"].mean()
    for mode, statistics in (("eval", "batch"), ("train", "batch"), ("train", "given")):
        assert mean("early", mode, statistics) < 0.6 * null
        assert abs(mean("early", mode, statistics) - mean("early", "train", "batch")) < 0.01
    assert mean("early", "train", "running") > 2 * null
    assert max(mean("late", "eval", "batch"), mean("late", "train", "batch")) < null < mean("late", "train", "running")
    batches = whole[(whole["batch"] == 4) & (whole["stage"] == "early")]
    reached = (batches["rmse"] <= batches["eta"]).groupby(batches["mode"]).mean()
    assert reached["eval"] > 0.8 and reached["train"] == 0


@pytest.mark.data
def test_an_answer_that_is_not_the_truth_is_scored_as_such(
    made: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A grey image of another class has its own distance from the victim's image, and a wrong label."""
    import batch_norm  # noqa: PLC0415

    def grey(method: Any, views: Any, rngs: Any) -> Any:
        (view,) = views
        inputs = torch.full((view.victims, view.examples, *view.shape), 0.5)
        answer = answered_at_once(views, inputs, rngs, labels=torch.zeros(view.victims, 1, dtype=torch.int64))
        return dataclasses.replace(answer, labels=torch.full((view.victims, 1), -1))

    name = batch_norm.name_of("eval", "batch", 1, "early", 0)
    monkeypatch.setattr(batch_norm, "answered", grey)
    monkeypatch.setattr(batch_norm, "RESULTS", tmp_path)
    monkeypatch.setattr(batch_norm, "page", lambda rows: "")
    monkeypatch.setattr(sys, "argv", ["batch_norm.py", "--only", name])
    batch_norm.main()
    scored = pd.read_csv(tmp_path / "batch_norm.csv")
    cell = batch_norm.cell_of("eval", "batch", 1, None)
    inputs = truth(cell, "type-1", draw_victims(cell, "type-1", 0, hand_out(cell)))[0]
    expected = (inputs[scored["victim"].tolist(), 0] - 0.5).square().flatten(1).mean(1).sqrt()
    assert len(scored) == batch_norm.VICTIMS
    assert scored["rmse"].tolist() == pytest.approx(expected.tolist(), rel=1e-5)
    assert not scored["label_right"].any()
