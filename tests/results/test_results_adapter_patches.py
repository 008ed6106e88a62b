"""The page of patches that PEFTLeak reads follows from its rows, and its counts agree with a count by hand."""

from types import SimpleNamespace

import pandas as pd
import pytest
import torch

from leakbench.attack.methods.adapter_rows import Patch
from tests.published_files import STUDIES, published_file

BINS = {64: [82] * 5 + [83] * 11, 8: [9] * 13 + [10] * 3}
"""{width r of the adapters: number of bins of each position}."""


def law_of(width: int, batch: int) -> float:
    """Return the mean of (1 - 1 / k)^(B - 1) over the positions."""
    return sum((1 - 1 / k) ** (batch - 1) for k in BINS[width]) / len(BINS[width])


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
    plain = rows[~rows["row"].str.contains("sigma|gain")]
    assert len(plain) >= 6
    assert (plain["read"] - plain["law"]).abs().max() < 0.1
    assert (plain["near"] > plain["baseline"]).mean() > 0.5


def test_the_law_is_that_of_the_bins_of_each_position(rows):
    """A network of L = 12 blocks has 2 L - 3 adapters with bins; their 1,323 or 147 bins are shared out among 16 positions."""
    for _, row in rows.iterrows():
        assert sum(BINS[row["width"]]) == 21 * (row["width"] - 1)
        assert row["patches"] == row["batches"] * row["batch"] * len(BINS[row["width"]])
        assert row["law"] == pytest.approx(law_of(row["width"], row["batch"]), rel=1e-12)


@pytest.mark.data
def test_a_row_has_the_law_of_its_batch_size(in_studies, rows):
    """Its other numbers are the published ones."""
    from adapter_patches import measure  # noqa: PLC0415

    (row,) = measure("r = 8, B = 8", None)
    assert row["law"] == pytest.approx(law_of(8, 8), rel=1e-12)
    published = rows[rows["row"] == row["row"]].iloc[0]
    for name in ("patches", "law", "baseline"):
        assert row[name] == pytest.approx(published[name], rel=1e-6)


def test_noise_reduces_the_reading_of_an_adaptive_attacker_and_does_not_end_it(rows):
    """More than the mean public patch: at most B of its baseline for the precision, and the baseline for the share near."""
    told = rows[rows["row"].str.contains("adaptive")]
    assert len(told) == 6 and (told["read"] < 0.1).all()
    best = told.groupby(told["row"].str.extract(r"sigma (\S+),")[0])[["read", "near_low"]].max()
    assert (best["read"] > 0.02).all() and (best["near_low"] > 5 * told["baseline"].max()).all()
    assert (told["precision"] > 10 * 8 * told["baseline"]).all()


def test_a_posterior_patch_counts_at_its_position_if_it_was_read(in_studies, monkeypatch):
    """Two pictures of two patches of one pixel; one patch of the second picture is filled in."""
    import adapter_patches  # noqa: PLC0415

    pictures = torch.tensor([[[[[0.1, 0.2]]], [[[0.3, 0.4]]]]])
    read = torch.tensor([[[[[True, True]]], [[[False, True]]]]])
    monkeypatch.setattr(adapter_patches, "read_pictures", lambda *_: (pictures, read))
    bins = SimpleNamespace(patch=1)
    found = adapter_patches.posterior(SimpleNamespace(victims=1, examples=2), bins, None)
    assert found.values[..., 0].tolist() == pictures.flatten(1).tolist()
    assert found.place.tolist() == [[0, 1, 0, 1]]
    assert found.possible.tolist() == [[True, True, False, True]]


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
