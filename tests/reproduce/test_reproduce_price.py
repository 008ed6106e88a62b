"""The price of an accuracy: epsilons and leaks at the noises of a sweep, and a figure and a text that fit the published rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml
from command_line import called
from matplotlib.image import imread

from leakbench.core.errors import InputError
from leakbench.reproduce.price import leaks_of, price_figure, price_lines, reached_of
from leakbench.reproduce.table import Table, read_table
from leakbench.study.rows import RowStore
from leakbench.summary.verdict import above_chance
from tests.published_files import published_file

SWEEP, LEAKS = (read_table(name) for name in ("largest_noise", "largest_noise_leak"))
MEASURED = RowStore(published_file("largest_noise.csv"), SWEEP.format, SWEEP.current).read()


def test_attacked_cells_are_those_of_the_sweep() -> None:
    """The same defense, noise and federation; only the training and the attack differ."""
    attacks = {line.name: line.given for line in LEAKS.lines}
    assert list(attacks) and set(attacks) == {line.name for line in SWEEP.lines}
    same = ("dataset", "defense", "noise_factor", "clients", "clients_per_round")
    for line in SWEEP.lines:
        assert {field: line.given[field] for field in same} == {field: attacks[line.name][field] for field in same}


def test_both_tables_publish_the_same_valid_epsilon() -> None:
    """Against an observer of the released models, computed before a training and after it."""
    trained, attacked = MEASURED.set_index("cell")["epsilon_valid"], leaks_of(SWEEP, None)
    both = attacked[attacked["cell"].isin(trained.index)]
    assert len(both)
    assert both["epsilon_valid"].to_numpy() == pytest.approx(trained[both["cell"]].to_numpy(), rel=1e-6, nan_ok=True)
    assert set(attacked["point"]) == {"type-1", "type-2"} and set(attacked["attack"]) == {"autoleak"}


def test_the_published_figure_is_that_of_the_rows() -> None:
    """Rows that were measured again without drawing the figure change its pixels."""
    figure = price_figure(reached_of(SWEEP, MEASURED), MEASURED, leaks_of(SWEEP, None))
    figure.canvas.draw()
    now, published = np.asarray(figure.canvas.buffer_rgba()) / 255, imread(published_file("largest_noise.png"))  # type: ignore[attr-defined]
    assert published.shape == now.shape
    assert (np.abs(published - now).max(axis=2) > 0.1).mean() < 2e-4


def test_the_answer_of_the_page_of_leaks_is_that_of_the_rows() -> None:
    """Every victim without noise at the leakage point; elsewhere one row is decided at the most noise, and the least leaks."""
    rows = leaks_of(SWEEP, None)
    defense = rows["defense"].str.partition(" ")[0]
    open_ = (defense == "fed_sdp_server") | ((defense == "fed_cdp_valid") & (rows["point"] == "type-2"))
    assert set(rows.loc[open_, "verdict"]) == {"reconstructs"} and (rows.loc[open_, "asr"] == 1).all()
    ends = rows[~open_].groupby([rows["cell"].str.rpartition(", ")[0], "point"], sort=False)["verdict"]
    at_most = ends.first()
    assert list(at_most[at_most != "inconclusive"].index) == [("adult, Fed-CDP, calibrated", "type-1")]
    [one] = rows[(rows["cell"] == "adult, Fed-CDP, calibrated, sigma = 6") & (rows["point"] == "type-1")].to_dict(
        "records"
    )
    assert one["asr"] == 0 and one["rmse"] > one["null_rmse"]
    assert not above_chance(round(100 * one["identified"]), 100, 1 / one["candidates"])
    assert set(ends.last()) <= {"reconstructs", "identifies"}
    assert set(rows[~open_].groupby("dataset")["cell"].first().str.rpartition(", ")[2]) == {"sigma = 6"}


def sweep(*cells: tuple[str, float, float, float], **more: Any) -> pd.DataFrame:
    """Return rows of sweeps with (name, mean accuracy, half of its interval, valid epsilon) of each cell, and an aim of .9."""
    return pd.DataFrame(
        {"row": name, "cell": name, "point": "type-2", "aim": 0.9, "seeds": 3, "trained_accuracy": mean}
        | {"trained_accuracy_low": mean - half, "trained_accuracy_high": mean + half, "epsilon_valid": epsilon, **more}
        for name, mean, half, epsilon in cells
    )


def leak(cell: str, point: str, verdict: str, epsilon: float) -> dict[str, Any]:
    numbers = {"asr": 0.5, "asr_low": 0.4, "asr_high": 0.6, "null_asr": 0.1, "identified": 1.0, "candidates": 100}
    return {
        "row": f"{cell}, {point}",
        "cell": cell,
        "point": point,
        "verdict": verdict,
        "epsilon_tap": epsilon,
        **numbers,
    }


NONE = float("nan")
ROWS = sweep(
    *(("a, 6", 0.7, 0.01, 1.0), ("a, 3", 0.85, 0.05, 10.0), ("a, 1", 0.92, 0.05, 100.0), ("a, .1", 0.95, 0.01, 1e4)),
    *(("b, 6", 0.5, 0.01, NONE), ("b, 1", 0.6, 0.01, NONE)),
)
ATTACKED = pd.DataFrame(
    [
        leak("a, 6", "type-1", "inconclusive", NONE),
        leak("a, 6", "type-2", "reconstructs", NONE),
        leak("a, 1", "type-1", "identifies", 200.0),
        leak("b, 1", "type-2", "no leak found", 5.0),
    ]
)


def test_the_text_separates_means_at_the_aim_from_what_is_not_excluded() -> None:
    page = "\n".join(price_lines(SWEEP, ROWS, ATTACKED))
    reaches = "a, 1 (valid epsilon 100), 3 trainings, but the interval of the mean begins below the printed accuracy."
    assert f"- The mean accuracy reaches the printed one in 1 of 2 measured sweeps: {reaches}" in page
    assert "- In the others no measured noise does, down to the least: b, 1 (no valid epsilon)." in page
    assert "- One more training may still reach it at a, 3 (valid epsilon 10)." in page
    assert "or are not excluded, of 1 attacks (cells and leakage points): identifies 1." in page
    assert "at the most noise, of 2 attacks (cells and leakage points): reconstructs 1, inconclusive 1." in page
    assert "| a, 1 | mean at the aim | 0.920 [0.870, 0.970] | 100.000 | 200.000 | identifies |" in page
    assert "| a, 3 | not excluded | 0.850 [0.800, 0.900] | 10.000 | - | - | - | - | - | - | - | - |" in page
    assert "Not attacked yet: a, 3; a, .1; b, 6." in page
    assert "may be chance" not in page
    weak = {"verdict": "reconstructs", "asr": 0.1, "identified": 0.03, "victims": 100}
    alone = ATTACKED.assign(victims=100).where(ATTACKED["cell"] != "a, 1", ATTACKED.assign(**weak))
    said = "rests on another measure and may be chance ([all attacked noises](largest_noise_leak.md)): a, 1, type-1."
    assert said in "\n".join(price_lines(SWEEP, ROWS, alone))
    few = "\n".join(price_lines(SWEEP, ROWS.assign(seeds=1), ATTACKED))
    assert "a, 1 (valid epsilon 100), 1 training, but" in few and "Too few trainings to exclude anything: a; b." in few
    assert price_lines(SWEEP, ROWS.drop(columns="aim"), ATTACKED) == []


def test_a_mark_is_at_the_epsilon_of_its_observer() -> None:
    """Or in the lane without a guarantee; a star is a mean at the aim, and every attacked noise has its verdict's marker."""
    released, update, gradient = price_figure(reached_of(SWEEP, ROWS), ROWS, ATTACKED).axes
    assert list(released.lines[0].get_xdata()) == pytest.approx([0, 1, 2, 4])
    lane = [float(x) for x in released.lines[1].get_xdata()]
    assert min(lane) > 4 and lane == sorted(lane)
    assert list(update.lines[0].get_xdata())[1] == pytest.approx(np.log10(200))
    assert [len(axes.lines[1].get_xdata()) for axes in (update, gradient)] == [0, 1]
    assert [text.get_text() for text in released.texts[1:]] == ["3", "1"]
    assert [label.get_text().split("\n")[1] for label in released.get_yticklabels()] == [
        "mean reaches this at 1",
        "mean reaches this at no measured noise",
    ]


BODY: dict[str, Any] = {
    "title": "A small table",
    "columns": "leaks",
    "given": {"dataset": "cancer", "defense": "fed_cdp", "attack": "cpl", "iterations": 1, "victims": 2}
    | {"taps": ["type-2", "type-1"], "train_rounds": 0, "candidates": 10, "leak_batch": 1},
    "rows": [{"name": "a"}],
}


def written(folder: Path, **body: Any) -> Table:
    (folder / "tiny.yaml").write_text(yaml.safe_dump({**BODY, **body}), encoding="utf-8")
    return read_table(str(folder / "tiny.yaml"))


def test_rows_of_leaks_have_the_epsilons_of_the_whole_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Against observers of the released models and of each row's leakage point, although the cell trains nothing."""
    table = written(tmp_path)
    paths = ("--out", str(tmp_path), "--runs", str(tmp_path / "runs"))
    assert called(monkeypatch, capsys, "reproduce", table.called, "--scale", "full", *paths)[0] == 0
    rows = RowStore(tmp_path / "tiny.csv", table.format, table.current).read().set_index("point")
    given = ("--defense", "fed_cdp", "--dataset", "cancer", "--json")
    expected = json.loads(called(monkeypatch, capsys, "epsilon", *given)[1])
    for point in ("type-2", "type-1"):
        assert rows.loc[point, "epsilon_valid"] == pytest.approx(expected["valid"])
        assert rows.loc[point, "epsilon_tap"] == pytest.approx(expected["by_tap"][point]["valid"])
    assert "| epsilon valid, here |" in (tmp_path / "tiny.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"leaks": "largest_nois"}, "leaks: unknown table 'largest_nois'; did you mean 'largest_noise'?"),
        ({"leaks": "largest_noise_leak"}, "leaks: needs rows with an aim"),
        ({"leaks": "largest_noise_leak", "rows": [{"name": "a", "aim": 0.5}], "pictures": 1}, "leave out pictures"),
    ],
)
def test_a_wrong_table_of_leaks_is_refused(changes: dict[str, Any], says: str, tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        written(tmp_path, columns="accuracy", **changes)
    assert says in str(caught.value)
