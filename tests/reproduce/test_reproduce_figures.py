"""Tables of pictures, of costs and of curves: the sources of their figures and verdicts."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
import yaml
from matplotlib.image import imread

from leakbench.core.errors import InputError
from leakbench.core.progress import Reporter
from leakbench.measure.statistics import mean_interval
from leakbench.reproduce import cost
from leakbench.reproduce.curves import Order, Rounds, ordered
from leakbench.reproduce.page import claims_of, page_of
from leakbench.reproduce.reproduce import reproduce
from leakbench.reproduce.table import Table, read_table
from leakbench.reproduce.table_figures import draw, draw_curves, shown_of
from leakbench.reproduce.verdict import compared, decided, settled
from leakbench.study.study import Execution

TINY = {
    "title": "A small table",
    "text": "Of digits.",
    "given": {"dataset": "digits", "attack": "cpl", "victims": 2, "taps": ["type-2"], "train_rounds": 0}
    | {"candidates": 10, "iterations": 2},
}


def table_of(folder: Path, **body: Any) -> Table:
    path = folder / "tiny.yaml"
    path.write_text(yaml.safe_dump({**TINY, **body}), encoding="utf-8")
    return read_table(str(path))


def measure(table: Table, folder: Path, only: str = "") -> tuple[list[str], pd.DataFrame]:
    """Return (rows measured now, all rows)."""
    told: list[str] = []
    here = Execution(folder / "runs", None, Reporter(quiet=True))
    rows = reproduce(table, "full", only, {}, folder, here, lambda row: told.append(row["row"]))
    return told, rows


def run_of(shape: tuple[int, ...], errors: list[float], eta: float = 0.1) -> tuple[pd.DataFrame, dict[str, Any]]:
    """Return rows and tensors of a run that leaked this many examples at type-2 and type-1; the rows are not in order."""
    truth = torch.rand(shape, generator=torch.Generator().manual_seed(0))
    tensors = {f"{tap}.round0.truth": truth for tap in ("type-1", "type-2")}
    tensors |= {f"{tap}.round0.reconstruction": truth + 2 * (tap == "type-1") for tap in ("type-1", "type-2")}
    rows = [
        {"tap": tap, "round": 0, "victim": v, "member": m, "rmse": errors[v * shape[1] + m], "eta": eta}
        for tap in ("type-2", "type-1")
        for v in range(shape[0])
        for m in range(shape[1])
    ]
    return pd.DataFrame(rows[::-1]), tensors


def test_pictures_are_the_first_drawn_examples_with_their_errors() -> None:
    rows, tensors = run_of((2, 2, 1, 3, 3), [0.05, 0.2, 0.1, 0.3])
    first, second = shown_of("lfw, 32 wide, Fed-SDP", rows, tensors, 3)
    assert (first.group, first.method, first.point, first.batch) == ("lfw, 32 wide", "Fed-SDP", "type-2", 2)
    assert second.point == "type-1"
    assert [(tile.rmse, tile.came_back) for tile in first.tiles] == [(0.05, True), (0.2, False), (0.1, True)]
    grey = tensors["type-2.round0.truth"].flatten(0, 1)[2, 0].double().numpy()
    assert len(first.truth) == 3 and all(np.array_equal(first.truth[2][..., c], grey) for c in range(3))
    assert np.array_equal(first.tiles[2].pixels, first.truth[2])
    assert np.all(second.tiles[0].pixels == 1)  # Clamped.


def test_a_reconstruction_of_nan_has_no_picture() -> None:
    rows, tensors = run_of((1, 1, 3, 3, 3), [0.5])
    tensors["type-2.round0.reconstruction"] = torch.full((1, 1, 3, 3, 3), math.nan)
    [tile] = shown_of("lfw", rows, tensors, 1)[0].tiles
    assert tile.pixels is None


def test_data_without_pictures_are_refused() -> None:
    rows, tensors = run_of((2, 1, 7), [0.5, 0.5])
    with pytest.raises(InputError, match=r"row 'adult': type-1 leaks examples of shape \(7,\), no pictures"):
        shown_of("adult", rows, tensors, 1)


def test_a_line_of_pictures_shows_the_same_examples(tmp_path: Path) -> None:
    """A tile for the truth and for each method; tiles missing at a point are blank."""
    rows, tensors = run_of((2, 1, 1, 3, 3), [0.05, 0.2])
    one, other = (shown_of(f"mnist, {method}", rows, tensors, 2) for method in ("none", "Fed-SDP"))
    draw([*one, *other[:1]], {"none": "accuracy 0.9"}, tmp_path / "a.png")
    draw(one, {}, tmp_path / "b.png")
    # Two examples, each adds a column.
    assert imread(tmp_path / "a.png").shape[1] - imread(tmp_path / "b.png").shape[1] == pytest.approx(300, abs=2)
    moved = {name: tensor.flip(0) for name, tensor in tensors.items()}
    with pytest.raises(InputError, match="mnist, type-2: rows attacked other examples"):
        draw([*one, *shown_of("mnist, moved", rows, moved, 2)], {}, tmp_path / "c.png")
    assert not (tmp_path / "c.png").exists()


@pytest.mark.slow
def test_a_figure_is_drawn_from_finished_cells(tmp_path: Path) -> None:
    """A complete run is not repeated, also if the figure was lost."""
    table = table_of(
        tmp_path, rows=[{"name": "digits, cpl"}, {"name": "digits, dlg", "given": {"attack": "dlg"}}], pictures=1
    )
    assert measure(table, tmp_path, only="digits, cpl")[0] == ["digits, cpl"]
    narrow = imread(tmp_path / "tiny.png").shape[1]
    assert measure(table, tmp_path)[0] == ["digits, dlg"]
    kept = (tmp_path / "tiny.png").read_bytes()
    assert imread(tmp_path / "tiny.png").shape[1] == narrow + 150
    (tmp_path / "tiny.png").unlink()
    times = {path: path.stat().st_mtime_ns for path in (tmp_path / "runs").rglob("rows.parquet")}
    assert measure(table, tmp_path)[0] == [] and len(times) == 2
    assert (tmp_path / "tiny.png").read_bytes() == kept
    assert times == {path: path.stat().st_mtime_ns for path in (tmp_path / "runs").rglob("rows.parquet")}
    assert "![A small table](tiny.png)" in (tmp_path / "tiny.md").read_text()


def clock(seconds: list[float]) -> Iterator[float]:
    """Yield the clock's readings before and after pieces of work with these durations."""
    now = 0.0
    for each in seconds:
        yield now
        now += each
        yield now


COSTS = {
    "columns": "cost",
    "repeats": 6,
    "rows": [{"name": "Fed-CDP", "given": {"defense": "fed_cdp"}, "claim": {"cost_ratio": 3.3}, "because": "engine"}],
    "given": {**TINY["given"], "clients": 10, "clients_per_round": 2, "local_iterations": 2, "train_rounds": 1},  # type: ignore[dict-item]
}


def test_a_ratio_is_the_median_over_repetitions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ours 2, 4 .. 12 s against 2 s, after a warm-up that is not timed, for 2 clients of 2 iterations: 3.5 times, 1,750 ms."""
    took = [each for own in (2.0, 4.0, 6.0, 8.0, 10.0, 12.0) for each in (own, 2.0)]
    shown = clock(took)
    monkeypatch.setattr(cost.time, "process_time", lambda: next(shown))  # type: ignore[attr-defined]
    table = table_of(tmp_path, **COSTS)
    told, rows = measure(table, tmp_path)
    row = rows.iloc[0]
    assert told == ["Fed-CDP"]
    assert (row["cost_ratio"], row["cost_ratio_low"], row["cost_ratio_high"]) == (3.5, 1.0, 6.0)
    assert (row["milliseconds"], row["milliseconds_none"], row["repeats"]) == (1750, 500, 6)
    [claim] = claims_of(table, rows)
    assert (claim.claimed, claim.value, claim.verdict) == (3.3, 3.5, "no verdict")
    assert claim.reason == "another engine and machine"
    assert "| Fed-CDP | 3.30 | 3.50 [1.00, 6.00] | 1750.00 | 500.00 | 6 |" in page_of(table, rows)
    assert measure(table, tmp_path)[0] == []  # The row is kept.
    assert page_of(table, pd.read_csv(tmp_path / "tiny.csv")) == page_of(table, rows)


def test_the_time_of_a_round_depends_on_the_defense(tmp_path: Path) -> None:
    """Example gradients take longer than batch gradients."""
    rows = measure(table_of(tmp_path, **{**COSTS, "rows": [{"name": "a", "given": {"defense": "precode"}}]}), tmp_path)[
        1
    ]
    assert rows["cost_ratio"].iloc[0] > 1 and 0 < rows["milliseconds_none"].iloc[0] < rows["milliseconds"].iloc[0]


def curves(**accuracies: list[list[float]]) -> pd.DataFrame:
    return pd.DataFrame([{"cell": name, "accuracies": json.dumps(found)} for name, found in accuracies.items()])


def test_the_window_is_a_mean_over_as_many_rounds_at_each_end() -> None:
    """Rounds .1, .2, .3 and .7: .15 over the first two, .5 over the last two."""
    rows, orders = curves(a=[[0.1, 0.2, 0.3, 0.7]], b=[[0.0] * 4]), ("all", "first", "last")
    found = ordered(Rounds(2, {}, tuple(Order("a above b", ("a",), ("b",), span) for span in orders)), rows, {}, {})
    assert [claim.value for claim in found] == pytest.approx([32.5, 15.0, 50.0])


def test_an_order_is_reproduced_if_the_difference_over_seeds_is_positive() -> None:
    """Differences seed by seed with a mean of 10, -10 or .1 points and a deviation of .05 points over ten seeds."""
    seeds = range(10)
    rows = curves(
        a=[[0.3, 0.6] for _ in seeds],
        b=[[0.4 + 0.0005 * (-1) ** s, 0.3] for s in seeds],
        c=[[0.3, 0.599 + 0.0005 * (-1) ** s] for s in seeds],
        d=[[0.1, 0.9]],
    )
    orders = [
        Order("a above b", ("a",), ("b",)),
        Order("at first", ("a",), ("b",), "first"),
        Order("at last", ("a",), ("c",), "last"),
        Order("twice", ("a", "a"), ("b", "a")),
        Order("one seed", ("a",), ("d",)),
        Order("not measured", ("a",), ("e",)),
        Order("later", ("a",), ("b",), apart="written after the results"),
    ]
    found = ordered(Rounds(1, {}, tuple(orders)), rows, {}, {})
    whole, first, last, twice, alone, later = decided(found)
    assert (whole.row, whole.verdict, whole.value) == ("a above b", "reproduced", pytest.approx(10))
    half = 2.262157 * 0.025 * math.sqrt(10 / 9) / math.sqrt(10)
    assert whole.high - whole.value == pytest.approx(half, rel=1e-5)
    assert (first.row, first.verdict) == ("at first, first 1 rounds", "contradicted")
    assert first.value == pytest.approx(-10) and first.reason == "the difference is not explained yet"
    assert (last.verdict, last.value) == ("reproduced", pytest.approx(0.1))
    assert (twice.low, twice.high) == (pytest.approx(whole.low), pytest.approx(whole.high))
    assert (alone.verdict, alone.reason, alone.low) == ("different setting", "one seed", -math.inf)
    assert (later.verdict, later.reason) == ("no verdict", "written after the results")
    assert (later.low, later.high) == (whole.low, whole.high)


def test_an_order_that_seeds_do_not_decide_is_reported() -> None:
    rows = curves(a=[[0.1], [0.5], [0.3]], b=[[0.5], [0.1], [0.3]], c=[[0.1], [0.1], [0.1]], d=[[0.2], [0.2], [0.2]])
    orders = (Order("a above b", ("a",), ("b",)), Order("c above d", ("c",), ("d",)))
    one, alike = decided(ordered(Rounds(1, {}, orders), rows, {}, {}))
    assert (one.verdict, one.reason) == ("undecided", "3 seeds: p = 1 after Holm's correction")
    assert (alike.verdict, alike.reason) == ("undecided", "3 seeds: their spread is unknown")


@pytest.mark.slow
def test_accuracies_of_every_seed_and_round_are_kept_and_drawn(tmp_path: Path) -> None:
    rows = [{"name": "none"}, {"name": "loud", "given": {"defense": "fed_sdp_server"}}]
    given = {**TINY["given"], "train_rounds": 2, "clients": 10, "clients_per_round": 2, "local_iterations": 1}  # type: ignore[dict-item]
    more = {
        "curves": {"One": ["none", "loud"]},
        "orders": [{"says": "noise costs", "more": ["none"], "less": ["loud"]}],
    }
    table = table_of(tmp_path, rows=rows, given=given, columns="accuracy", seeds=2, **more)
    _, found = measure(table, tmp_path)
    kept = [json.loads(each) for each in found["accuracies"]]
    assert np.array(kept).shape == (2, 2, 2)
    assert found["trained_accuracy"].iloc[0] == pytest.approx(np.mean([seed[-1] for seed in kept[0]]))
    assert (tmp_path / "tiny.png").is_file()
    assert [(claim.row, claim.reason) for claim in claims_of(table, found)] == [
        ("noise costs", "2 seeds of at least 3")
    ]
    assert "| noise costs | points of accuracy above | > 0 |" in page_of(table, found)
    # Missing measurements are not drawn.
    assert table.rounds is not None
    draw_curves(table.rounds, found.head(0), tmp_path / "none.png")
    assert (tmp_path / "none.png").is_file()


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"pictures": -1}, "pictures: input should be greater than or equal to 0, got -1"),
        ({"repeats": "many", "columns": "cost"}, "repeats: input should be a valid integer, got 'many'"),
        ({"curves": {"One": ["aa"]}}, "curves, orders: 'aa' is not a row; did you mean 'a'?"),
        (
            {"curves": {"One": ["a"]}, "orders": [{"says": "x", "more": ["a"], "less": ["b"]}]},
            "curves, orders: 'b' is not a row",
        ),
        (
            {"curves": {"One": ["a"]}, "orders": [{"says": "x", "more": ["a"], "less": ["a"], "rounds": "lats"}]},
            "orders: rounds: input should be 'all', 'first' or 'last', got 'lats'",
        ),
        ({"curves": {"One": ["a"]}, "orders": [{"more": ["a"], "less": ["a"]}]}, "orders: missing field 'says'"),
    ],
)
def test_a_wrong_field_of_a_figure_is_named(changes: dict[str, Any], says: str, tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        table_of(tmp_path, rows=[{"name": "a"}], **changes)
    assert says in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("quick", [{"seeds": 3}, {"victims": 4}, {"train_rounds": 2}, {"seeds": 3, "iterations": 1}])
def test_rows_of_scale_quick_decide_nothing(quick: dict[str, int], tmp_path: Path) -> None:
    """Each kind of claim: a rate over networks, an accuracy over trainings, an exact number, and an order of rows."""
    claim = {"asr": 0.5, "accuracy": 0.5, "rounds": 4, "resilient": 0}
    body = {"columns": "accuracy", "window": 1, "curves": {"f": ["a", "b"]}, "quick": quick, "seeds": 10}
    body |= {"rows": [{"name": "a", "claim": claim}, {"name": "b"}]}
    body |= {"orders": [{"says": "a above b", "more": ["a"], "less": ["b"]}]}
    table = table_of(tmp_path, **body)
    measured = {"asr": 0.5, "asr_low": 0.49, "asr_high": 0.51, "networks": 5, "seeds": 10, "rounds": 4, "resilient": 0}
    measured |= {"trained_accuracy": 0.5, "trained_accuracy_low": 0.499, "trained_accuracy_high": 0.501}
    noise = [0.001 * (-1) ** seed for seed in range(10)]

    def verdicts(**scales: str) -> dict[str, str]:
        rows = [
            {**measured, "row": name, "cell": name, "point": "type-2", "scale": scales[name], "dataset": "digits"}
            | {
                "accuracies": json.dumps([[share + apart * (name == "a")] for apart in noise]),
                "verdict": "reconstructs",
            }
            for name, share in (("a", 0.6), ("b", 0.4))
        ]
        found = claims_of(table, pd.DataFrame(rows))
        for each in found:
            assert each.reason.startswith("scale quick: ") == (each.verdict == "different setting"), each
        return {each.what: each.verdict for each in found}

    kinds = ("asr", "accuracy", "rounds", "resilient")
    whole = verdicts(a="full", b="full")
    assert whole == dict.fromkeys((*kinds, "order"), "reproduced")
    assert verdicts(a="quick", b="full") == dict.fromkeys(whole, "different setting")
    assert verdicts(a="full", b="quick") == {**whole, "order": "different setting"}  # An order needs all of its rows.


@pytest.mark.parametrize(
    ("accuracies", "judged"),
    [
        ([0.60, 0.61, 0.60, 0.61], True),
        ([0.20, 0.21, 0.20, 0.21], True),
        ([0.1010, 0.1013, 0.1010, 0.1013], False),  # One class for all: digits have ten classes of nearly equal size.
        ([0.0, 0.0, 0.0, 0.0], False),  # Diverged.
        ([0.60, 0.61, 0.60, 0.10], False),  # One of them collapsed: the trainings have two modes.
        ([0.13, 0.13, 0.13, 0.13], False),  # Within the sampling error of 450 test examples.
    ],
)
def test_trainings_at_chance_are_not_tested(accuracies: list[float], judged: bool, tmp_path: Path) -> None:
    """The error rate of the test is that of trainings whose accuracies are normal or skewed, not of those that collapse."""
    body = {"columns": "accuracy", "window": 1, "curves": {"f": ["a", "b"]}, "seeds": 4}
    body |= {"rows": [{"name": "a", "claim": {"accuracy": 0.928}}, {"name": "b"}]}
    table = table_of(tmp_path, **body, orders=[{"says": "b above a", "more": ["b"], "less": ["a"]}])
    mean = sum(accuracies) / len(accuracies)
    same = {"point": "type-2", "scale": "full", "dataset": "digits", "seeds": 4, "trained_accuracy": mean}
    same |= {"trained_accuracy_low": mean - 0.001, "trained_accuracy_high": mean + 0.001}
    rows = [
        {**same, "row": "a", "cell": "a", "accuracies": json.dumps([[each] for each in accuracies])},
        {**same, "row": "b", "cell": "b", "accuracies": json.dumps([[0.9], [0.91], [0.905], [0.9]])},
    ]
    accuracy, order = claims_of(table, pd.DataFrame(rows))
    found = {accuracy.verdict, order.verdict}
    assert found == ({"contradicted", "reproduced"} if judged else {"undecided"})
    assert (
        accuracy.reason.startswith("collapsed trainings: ")
        == order.reason.startswith("collapsed trainings: ")
        != judged
    )
    # A further training changes nothing for a collapsed one.
    assert judged or settled([accuracy], 2)
    if not judged:
        return
    # Without the accuracy of each training, the mean is compared.
    alone = pd.DataFrame(rows[:1]).drop(columns="accuracies").assign(trained_accuracy=0.114)
    [claim] = [each for each in claims_of(replace(table, rounds=None), alone) if each.what == "accuracy"]
    assert claim.verdict == "undecided" and claim.reason.startswith(
        "collapsed trainings: the least accuracy, 0.114, is not significantly above "
    )


def test_trainings_that_sometimes_collapse_are_not_contradicted(tmp_path: Path) -> None:
    """Three of four trainings collapse. Three that did say nothing about a paper's training that learned."""
    table = table_of(tmp_path, seeds=3, rows=[{"name": "a", "claim": {"accuracy": 0.9}}])
    rng = np.random.default_rng(0)

    def training(collapses: float = 0.75) -> float:
        accuracy = rng.choice([0.095, 0.1, 0.105]) if rng.random() < collapses else 0.9
        return float(accuracy + 0.001 * rng.standard_normal())

    false = {"with the rule": 0, "without it": 0}
    for _ in range(100):
        every, printed = [training() for _ in range(3)], round(training(0.0), 3)
        mean, low, high = mean_interval(np.array(every))
        row = {"row": "a", "cell": "a", "point": "type-2", "scale": "full", "dataset": "digits", "seeds": 3}
        row |= {"trained_accuracy": mean, "trained_accuracy_low": low, "trained_accuracy_high": high}
        row |= {"accuracies": json.dumps([[each] for each in every])}
        line = replace(table.lines[0], claims={"": {"accuracy": printed}})
        tested = decided(compared(row, {"accuracy": printed}, {}, "", {"accuracy": 3}))
        for how, claims in (
            ("with the rule", claims_of(replace(table, lines=(line,)), pd.DataFrame([row]))),
            ("without it", tested),
        ):
            false[how] += claims[0].verdict == "contradicted"
    assert false["with the rule"] == 0
    assert false["without it"] > 2  # More than 1 % of the pages.
