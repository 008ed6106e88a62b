"""The pages about servers that lie: they follow from their rows, and closed forms give what others measured."""

import math
from pathlib import Path

import pandas as pd
import pytest

RESULTS = Path(__file__).parents[1] / "results"


@pytest.fixture
def in_results(monkeypatch):
    monkeypatch.syspath_prepend(str(RESULTS))


def test_a_coded_candidate_is_found_as_orthogonal_signals_are(in_results):
    """1 in 1,000 of nothing, all of much; 1.00, .52 and .016 were measured at sigma .1, .3 and 1, and .002 at 6."""
    from ideal_server import coded  # noqa: PLC0415

    assert coded(0.0) == pytest.approx(1e-3, rel=1e-6)
    assert coded(1 / 0.001) == pytest.approx(1.0)
    found = [coded(1 / sigma) for sigma in (0.1, 0.3, 1.0, 6.0)]
    assert found == pytest.approx([1.0, 0.52, 0.016, 0.002], abs=0.02)


def test_the_ideal_server_s_page_follows_from_its_rows(in_results):
    from ideal_server import page  # noqa: PLC0415

    rows = pd.read_csv(RESULTS / "ideal_server.csv")
    assert page(rows) == (RESULTS / "ideal_server.md").read_text(encoding="utf-8")
    assert (rows["coded"] <= rows["bound"] + 1e-6).all()
    # .042, .079, .125 and .179 were measured before, on CIFAR-10 with another prior.
    once = rows[(rows["dataset"] == "cifar10") & (rows["releases"] == 1)].set_index("sigma")["rmse"]
    assert [once[sigma] for sigma in (0.003, 0.01, 0.03, 0.1)] == pytest.approx([0.042, 0.079, 0.125, 0.179], abs=0.005)
    assert math.isclose(once[6.0], 0.236, abs_tol=0.005)


def test_the_matrix_has_a_line_a_defense(in_results):
    from threat_matrix import matrix  # noqa: PLC0415

    rows = pd.DataFrame(
        [
            {"cell": "clip, alone, honest", "point": "type-1", "asr": 1.0, "verdict": "leaks", "above": 0},
            {"cell": "clip, alone, lying", "point": "type-1", "asr": 0.1, "verdict": "identifies", "above": 1},
            {"cell": "clip, alone, lying", "point": "type-0", "asr": 0.0, "verdict": "attack failed", "above": 0},
            {"cell": "clip, alone, honest", "point": "type-0", "asr": 0.0, "verdict": "unclear", "above": 0},
            {"cell": "clip, alone, honest", "point": "global", "asr": 0.0, "verdict": "protected", "above": 0},
        ]
    )
    page = matrix(rows)
    assert "| clip, alone | - | - | 1.00 | 0.10* | 0.00** | 0.00 (no answer) | 0.00 | - |" in page
    assert "Of 5 cells 1 is above" in page
