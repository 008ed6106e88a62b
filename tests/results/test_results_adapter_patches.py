"""The page of patches that PEFTLeak reads follows from its rows, and its counts agree with a count by hand."""

import pandas as pd
import pytest
import torch

from leakbench.attack.methods.adapter_rows import Patch
from tests.published_files import STUDIES, published_file


@pytest.fixture
def rows() -> pd.DataFrame:
    return pd.read_csv(published_file("adapter_patches.csv"))


@pytest.fixture
def in_studies(monkeypatch):
    monkeypatch.syspath_prepend(str(STUDIES))


def test_the_page_is_rendered_from_its_rows(in_studies, rows):
    from adapter_patches import SETTINGS, page  # noqa: PLC0415

    published = published_file("adapter_patches.md").read_text(encoding="utf-8")
    assert page(rows) == published
    assert page(rows.assign(law=0.5)) != published
    assert list(rows["row"]) == list(SETTINGS)


def test_undefended_rows_follow_the_law_and_exceed_the_baseline(rows):
    """Five batches vary by more than patches of one batch do, so that a tenth is allowed."""
    plain = rows[~rows["row"].str.contains("sigma")]
    assert len(plain) >= 6
    assert (plain["read"] - plain["law"]).abs().max() < 0.1
    assert (plain["near"] > plain["baseline"]).mean() > 0.5


def test_patches_are_counted_at_their_position_and_among_the_answers(in_studies):
    """Two pictures of two patches. Bins: exact, near, exact at the wrong position, without an answer, and a mixture."""
    from adapter_patches import correct, nearest  # noqa: PLC0415

    own = torch.tensor([[[0.1, 0.1], [0.3, 0.3]], [[0.6, 0.6], [0.9, 0.9]]])[None]
    values = torch.tensor([[0.1, 0.1], [0.94, 0.94], [0.6, 0.6], [0.3, 0.3], [0.45, 0.45]])[None]
    place = torch.tensor([[0, 1, 1, 1, 0]])
    possible = torch.tensor([[True, True, True, False, True]])
    patches = Patch(values, place, torch.zeros(1, 5, 4), possible, torch.zeros(1, 5))
    found = nearest(patches, own)[0]
    torch.testing.assert_close(found, torch.tensor([[0.0, 0.3], [0.15, 0.04]]), atol=1e-6, rtol=0)
    assert correct(patches, own) == 2
