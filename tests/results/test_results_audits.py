"""results/checks/audits.md equals the output of studies/audits.py, and its loops are sound or broken as they say."""

from __future__ import annotations

import audits
import pandas as pd
import pytest
import torch
from audits import BROKEN, LOOPS, SOUND, clipped, epsilon, page

from tests.published_files import published_file

ROWS = pd.read_csv(published_file("audits.csv"))


def test_the_page_equals_the_output_of_the_script() -> None:
    assert page(ROWS) == published_file("audits.md").read_text(encoding="utf-8")
    assert list(ROWS["loop"]) == list(LOOPS)
    assert set(ROWS["trainings"]) == {SOUND, BROKEN}


def test_the_epsilons_are_those_of_the_ledger() -> None:
    assert list(ROWS["epsilon"]) == pytest.approx([epsilon(loop) for loop in LOOPS.values()])


def test_sound_loops_are_accused_in_at_most_five_of_a_hundred_and_those_without_noise_or_clip_always() -> None:
    rows = ROWS.set_index("loop")
    sound = rows[rows.index.str.startswith("sound")]
    assert (sound["trainings"] == 200).all() and (sound["violated"] <= 10).all()
    for broken in ("no noise", "no clip"):
        assert rows.loc[broken, "violated"] == rows.loc[broken, "trainings"]


def test_each_clip_bounds_what_it_names() -> None:
    """The whole gradient of an example, each of its tensors, or nothing."""
    rng = torch.Generator().manual_seed(0)
    grads = {n: 9 * torch.randn(5, 40, generator=rng) for n in "abcd"}
    norms = {
        kind: torch.stack([g.norm(dim=1) for g in clipped(grads, audits.Loop(1.0, clips=kind)).values()])
        for kind in ("example", "tensor", "none")
    }
    assert torch.allclose(norms["example"].norm(dim=0), torch.ones(5))
    assert torch.allclose(norms["tensor"], torch.ones(4, 5))
    assert (norms["none"] > 10).all()
