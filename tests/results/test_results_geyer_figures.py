"""The figures of Geyer et al.: curves are means over seeds, a dot ends the private part, and the page matches the CSV."""

import geyer_figures
import pandas as pd
import pytest

from leakbench.reproduce.table import read_table
from tests.published_files import published_file


def rounds() -> pd.DataFrame:
    return pd.DataFrame(
        [
            {"row": row, "scale": scale, "seed": seed, "round": n, "accuracy": 0.1 * n + 0.2 * seed}
            | {"between_client_variance": 1.0 + n, "update_scale": 2.0 - n}
            for row, scale in (("non-dp 100 clients", "quick"), ("dp 100 clients", "full"))
            for seed in (0, 1)
            for n in (0, 1)
        ]
    )


def test_curves_are_means_over_seeds() -> None:
    accuracy, own, variance, scale = geyer_figures.drawn(rounds()).axes
    benchmark, private, end = accuracy.lines
    for line in (benchmark, private, own.lines[0]):
        assert list(line.get_xdata()) == [1, 2] and list(line.get_ydata()) == pytest.approx([0.1, 0.2])
    assert (list(end.get_xdata()), end.get_marker(), end.get_color()) == ([2], "o", private.get_color())
    assert list(variance.lines[0].get_ydata()) == [1, 2] and list(scale.lines[0].get_ydata()) == [2, 1]


def test_the_page_names_cut_and_missing_curves() -> None:
    page = geyer_figures.page_of(read_table("geyer_table_1"), rounds())
    assert "| dp 100 clients | 2 | 2 | 0.200 | 1.00e+00 | 2.00e+00 | 2.00e+00 | 1.00e+00 |" in page
    assert "(scale quick): non-dp 100 clients." in page
    assert "Not measured yet: dp 1000 clients; dp 10000 clients." in page


def test_the_page_is_rendered_from_the_csv() -> None:
    csv = published_file("geyer_figures.csv")
    table = read_table("geyer_table_1")
    assert geyer_figures.page_of(table, pd.read_csv(csv)) == published_file("geyer_figures.md").read_text(
        encoding="utf-8"
    )
    measured = pd.read_csv(published_file("geyer_table_1.csv")).set_index("cell")
    last = pd.read_csv(csv).groupby(["row", "seed"]).last()["accuracy"].groupby("row").mean()
    assert last.to_dict() == pytest.approx(measured.loc[last.index, "trained_accuracy"].to_dict())


def test_the_verdict_counts_the_rows_in_which_each_measure_falls() -> None:
    """The paper's Figure 2 shows the variance rising and the scale falling."""
    page = geyer_figures.page_of(read_table("geyer_table_1"), rounds())
    assert "**Claim:** Between-client variance rises and update scale falls during training" in page
    assert "**Verdict:** V_c falls in 0 of 2 measured rows; U_s falls in 2 of 2 measured rows; no test" in page
