"""results/broken_defenses.md equals the output of studies/broken_defenses.py, and says what its rows show."""

from __future__ import annotations

import broken_defenses
import pandas as pd
import pytest
from broken_defenses import DEFENSES, page

from leakbench.core.recipe import catalog_folder
from tests.published_files import published_file

ROWS = pd.read_csv(published_file("adaptive_attacks.csv"))


def test_the_page_equals_the_output_of_the_script() -> None:
    published = (published_file("broken_defenses.md")).read_text(encoding="utf-8")
    assert page(*broken_defenses.read()) == published


def test_each_defense_of_the_rows_has_a_claim_and_is_in_the_catalog() -> None:
    measured = set(ROWS["cell"].str.rsplit(", ", n=1).str[0])
    assert measured <= set(DEFENSES)
    known = {path.stem for path in catalog_folder("defenses").iterdir()} | {"prune_90"}
    assert measured <= known


def test_a_row_without_a_claim_is_an_error() -> None:
    unknown = ROWS.assign(cell=ROWS["cell"].str.replace("qsgd", "unknown"))
    with pytest.raises(ValueError, match=r"DEFENSES: no claim of unknown"):
        page(unknown)


def test_the_verdict_counts_the_rows() -> None:
    """Those whose interval is above the baseline guess, and others whose verdict rests on recognition."""
    names = ROWS["cell"].str.rsplit(", ", n=1).str[0]
    both = names[names.duplicated()]
    aware = ROWS[ROWS["cell"].str.endswith(", defense") & names.isin(both)]
    above = aware["asr_low"] > aware["null_asr"]
    recognised = ((aware["verdict"] == "reconstructs") & ~above).sum()
    assert f"for {above.sum()} of {len(both)} defenses" in page(ROWS) and f"For {recognised} others" in page(ROWS)
    nothing = page(ROWS.assign(verdict="inconclusive", asr_low=0.0))
    assert f"for 0 of {len(both)} defenses, the oblivious one's for 0. For 0 others" in " ".join(nothing.split())
