"""docs/answers.md equals the output of studies/answers.py, and its answers follow from the rows."""

import re
from pathlib import Path

import pandas as pd
import pytest

from leakbench.frontier.frontier import store_of
from leakbench.study.rows import RowStore, of_table
from tests.published_files import STUDIES, published_file

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def in_results(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(STUDIES))


def test_the_page_equals_the_output_of_the_script() -> None:
    from answers import answers, page, read  # noqa: PLC0415

    found = answers(read())
    text = (ROOT / "docs" / "answers.md").read_text(encoding="utf-8")
    assert text == page(found)
    assert len(found) == 5
    for answer in found:
        assert answer.text().count("\n") < 12
        assert (ROOT / "docs" / answer.figure).is_file()
        for link in re.findall(r"\]\(([^)#]+)\)", answer.more):
            assert (ROOT / "docs" / link).is_file(), link


def test_the_figures_equal_those_of_the_script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import answers  # noqa: PLC0415

    (tmp_path / "assets").mkdir()
    monkeypatch.setattr(answers, "DOCS", tmp_path)
    answers.main()
    for name in ("flower", "secure", "malicious"):
        drawn, published = (folder / "assets" / f"answers_{name}.svg" for folder in (tmp_path, ROOT / "docs"))
        assert drawn.stat().st_size > 2000
        assert words(drawn) == words(published)


def words(svg: Path) -> list[str]:
    """Return the texts of a figure, which matplotlib keeps as comments."""
    return re.findall(r"<!-- (.*?) -->", svg.read_text(encoding="utf-8"))


def test_the_answer_on_secure_aggregation_follows_from_rows() -> None:
    from answers import secure_aggregation  # noqa: PLC0415

    rows = RowStore(published_file("servers_secure.csv"), of_table("servers")).read()
    assert secure_aggregation(rows).short.startswith("Not against a malicious server")
    quiet = rows.assign(asr=0.0, verdict="no leak found")
    assert secure_aggregation(quiet).short == "No leak was found in a sum of 10 clients."


def test_a_usable_setting_without_a_leak_is_the_answer_on_mnist() -> None:
    from answers import defense_for_mnist, fed_alpha_cdp  # noqa: PLC0415

    rows = store_of(published_file("frontier_mnist.csv")).read()
    matrix = RowStore(published_file("servers_matrix.csv"), of_table("servers")).read()
    good = {"identify_p": 0.9, "verdict": "inconclusive", "epsilon_valid": 7.0, "epsilon_tap": 70.0}
    better = rows.copy()
    for column, value in good.items():
        better.loc[better["row"] == "fed_alpha_cdp, x 0.01", column] = value
    short = defense_for_mnist(better).short
    assert short.startswith("`fed_alpha_cdp` at noise x 0.01 (sigma 0.06) for released models; but no setting against")
    assert fed_alpha_cdp(better, matrix).short.startswith("Partly: `fed_alpha_cdp` at noise x 0.01")


def test_the_answer_on_flower_follows_from_the_rows_of_its_wrappers() -> None:
    from answers import flower  # noqa: PLC0415

    rows = pd.read_csv(published_file("flower_wrappers.csv"), keep_default_na=False, na_values=[""])
    assert flower(rows).short.startswith("No: 4 of 6 configurations")
    closed = rows.assign(**{"type-0 asr": 0.0, "type-0 asr_low": 0.0})
    assert flower(closed).short.startswith("0 of 6 configurations")
