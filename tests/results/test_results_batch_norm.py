"""The page of batch normalisation matches its rows, and its rows match its claims."""

from __future__ import annotations

import sys
from types import ModuleType

import pandas as pd
import pytest

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
