"""The pages of what leaks say what their rows say."""

from pathlib import Path

import leakage_tables as tables
import pandas as pd
import pytest
import strongest_looks
from shared.grid import spelled_out
from shared.options import chosen

from leakbench.cell import Request
from leakbench.recipe import names

RESULTS = Path(__file__).parent.parent / "results"
PAGES = tables.pages()
WRITTEN = [name for name in PAGES if (RESULTS / f"{name}.csv").exists()]


@pytest.mark.parametrize("name", WRITTEN)
def test_a_page_is_made_of_its_rows(name) -> None:
    """Written anew from the CSV it is the same, and a row that changes changes it."""
    rows, kept = pd.read_csv(RESULTS / f"{name}.csv"), (RESULTS / f"{name}.md").read_text()
    assert tables.page_of(PAGES[name], rows) == kept
    assert tables.page_of(PAGES[name], rows.assign(asr=0.123)) != kept


@pytest.mark.parametrize("name", WRITTEN)
def test_rows_are_measurements_of_cells_of_the_page(name) -> None:
    rows = pd.read_csv(RESULTS / f"{name}.csv")
    rows = rows.set_index("cell")
    cells = {row: (given, claim) for row, given, claim in tables.cells(PAGES[name])}
    assert list(dict.fromkeys(rows.index)) == [row for row in cells if row in rows.index]
    for row, found in rows.iterrows():
        given, claim = cells[row]
        assert (found["dataset"], found["attack"]) == (given["dataset"], Path(given["attack"]).stem)
        if given["attack"] == "identification":
            assert pd.isna(found["asr"])
        else:
            assert found["asr_low"] <= found["asr"] <= found["asr_high"]
        assert 0 <= found["identified"] <= 1
        assert all(found[f"claimed_{key}"] == value for key, value in claim.items())


@pytest.mark.parametrize("name", WRITTEN)
def test_a_row_chooses_its_cell_as_the_page_prints_it(name) -> None:
    rows, cells = pd.read_csv(RESULTS / f"{name}.csv"), [row["name"] for row in PAGES[name]["rows"]]
    for row, cell in zip(rows["row"], rows["cell"], strict=True):
        assert chosen(cells, row) == chosen(cells, cell) == [cell]


def test_a_grid_is_a_row_for_each_combination() -> None:
    """Of a list, of values with names of their own, and of several fields; the last setting the fastest, single rows between."""
    each = {"data": {"digits": {"dataset": "mnist", "victims": 5}}, "batch": {"B 1": 1, 8: 8}, "attack": ["cpl", "dlg"]}
    rows = [
        {"name": "first {}", "given": {"attack": "dlg"}},
        {"name": "{data} {attack}, {batch}", "each": each, "given": {"victims": 9, "seed": 1}, "claim": {"asr": 1.0}},
    ]
    digits = {"victims": 5, "seed": 1, "dataset": "mnist"}
    assert list(spelled_out(rows)) == [
        rows[0],
        {"name": "digits cpl, B 1", "given": {**digits, "batch": 1, "attack": "cpl"}, "claim": {"asr": 1.0}},
        {"name": "digits dlg, B 1", "given": {**digits, "batch": 1, "attack": "dlg"}, "claim": {"asr": 1.0}},
        {"name": "digits cpl, 8", "given": {**digits, "batch": 8, "attack": "cpl"}, "claim": {"asr": 1.0}},
        {"name": "digits dlg, 8", "given": {**digits, "batch": 8, "attack": "dlg"}, "claim": {"asr": 1.0}},
    ]


def test_every_cell_of_every_page_can_be_asked_for() -> None:
    for page in PAGES.values():
        assert len({name for name, _, _ in tables.cells(page)}) == len(page["rows"])
        for _, given, claim in tables.cells(page):
            lists = {key: tuple(map(str, value)) for key, value in given.items() if isinstance(value, list)}
            request = Request(**{**given, **lists})
            assert request.attack in names("attacks") or Path(request.attack).is_file()
            assert request.defense in names("defenses") or Path(request.defense).is_file()
            assert set(claim) <= {"asr", "rmse", "iterations", "recall"}


def test_the_null_is_taken_off() -> None:
    """ASR .6 above a null of .2: .5."""
    row = pd.read_csv(RESULTS / f"{WRITTEN[0]}.csv").head(1).assign(asr=0.6, null_asr=0.2)
    assert "| 0.20 | 0.50 |" in tables.page_of(PAGES[WRITTEN[0]], row)


def test_the_figure_of_looks_shows_its_rows() -> None:
    """A solid line of what was measured and a dashed one of its bound for each sigma, in a panel each."""
    rows = pd.DataFrame(
        [
            {"dataset": dataset, "defense": f"clip_4_sigma_{sigma}", "observations": n, "identified": n / 200}
            | {"identified_bound": n / 100, "label_ranked": n / 150, "label_ranked_bound": n / 110}
            for dataset in ("mnist", "lfw")
            for sigma in ("0_3", "6")
            for n in (100, 1, 10)
        ]
    )
    figure = strongest_looks.drawn(rows)
    assert len(figure.axes) == 3
    for axes, share in zip(figure.axes, (200, 200, 150), strict=True):
        measured, bound = axes.lines[0], axes.lines[1]
        assert list(measured.get_xdata()) == [1, 10, 100]
        assert list(measured.get_ydata()) == pytest.approx([n / share for n in (1, 10, 100)])
        assert list(bound.get_ydata()) == pytest.approx([n / (100 if share == 200 else 110) for n in (1, 10, 100)])
        assert axes.lines[2].get_label() == "sigma 6"
