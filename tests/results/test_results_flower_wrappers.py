"""The page of Flower's wrappers is rendered from its rows, which can be read without flwr."""

import sys

import pandas as pd
import pytest

from tests.published_files import published_file


def test_the_page_follows_from_its_rows():
    from flower_wrappers_page import page  # noqa: PLC0415

    rows = pd.read_csv(published_file("flower_wrappers.csv"))
    assert page(rows) == published_file("flower_wrappers.md").read_text(encoding="utf-8")


def test_a_missing_flwr_is_refused_in_one_line(monkeypatch, capsys):
    from flower_wrappers import main  # noqa: PLC0415

    from leakbench.core.scripts import one_line  # noqa: PLC0415

    monkeypatch.setitem(sys.modules, "flwr", None)
    monkeypatch.setattr(sys, "argv", ["flower_wrappers.py"])
    with pytest.raises(SystemExit) as ended:
        one_line(main)
    assert ended.value.code == 2
    assert capsys.readouterr().err.endswith("pip install 'leakbench[flower]'\n")
