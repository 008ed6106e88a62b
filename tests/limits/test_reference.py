"""Expected success of a malicious server: closed forms against samples and other measurements, and errors above them."""

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from command_line import called

from leakbench.attack.search.shrinkage import Shrinkage, shrinkage_of
from leakbench.core.rng import generator
from leakbench.limits.reference import Reference, alone_in_a_bin, ideal
from leakbench.storage.summary import Tap
from leakbench.summary.limits import references, verbatim_fields, violations


@pytest.mark.parametrize(("bins", "examples"), [(16, 1), (16, 8), (256, 64)])
def test_the_share_alone_in_a_bin_equals_that_of_balls_in_bins(bins, examples):
    drawn = torch.randint(bins, (4000, examples), generator=torch.Generator().manual_seed(0))
    alone = (drawn[:, :, None] == drawn[:, None]).sum(2) == 1
    share = alone.double().mean(1)
    assert abs(float(share.mean()) - alone_in_a_bin(bins, examples)) < 4 * float(share.std()) / 4000**0.5 + 1e-12


def test_without_a_prior_the_error_is_sigma_times_the_length():
    """|(x, 1)| sigma, if the clamp has no effect; half of the reconstructions are that close."""
    wide = Shrinkage(torch.zeros(400), torch.eye(400), torch.full((400,), 1e8), 1e8)
    x = 0.4 + 0.2 * torch.rand(20, 400, generator=torch.Generator().manual_seed(1))
    length = (x.square().sum(1) + 1).sqrt()
    rmse, reached = ideal(wide, x, 0.002, 0.002 * float(length.mean()), generator(0, "r"))
    torch.testing.assert_close(rmse, 0.002 * length, rtol=0.05, atol=0)
    assert float(reached.mean()) == pytest.approx(0.5, abs=0.15)


def test_reconstructions_are_clamped_and_improve_with_more_releases():
    """For black pictures a clamp removes the half of the noise that is below zero."""
    wide = Shrinkage(torch.zeros(400), torch.eye(400), torch.full((400,), 1e8), 1e8)
    rmse, _ = ideal(wide, torch.zeros(50, 400), 0.1, 0.05, generator(0, "r"))
    assert float(rmse.median()) == pytest.approx(0.1 / 2**0.5, rel=0.05)
    prior = shrinkage_of(torch.rand(60, 20, generator=torch.Generator().manual_seed(2)))
    x = torch.rand(40, 20, generator=torch.Generator().manual_seed(3))
    once, often = (ideal(prior, x, 0.3 / views**0.5, 0.1, generator(0, "r"))[0].median() for views in (1, 100))
    assert float(often) < 0.5 * float(once)


def test_an_attacker_that_reads_nothing_equals_the_baseline():
    tap = Tap(null_asr=0.3, null_rmse=0.2)
    fields, notes = references("type-1", tap, Reference(None, "none: no bins", 0.0, 0.25, ""))
    assert (fields["asr_ideal"], fields["rmse_ideal"], fields["alone_expected"]) == (0.3, 0.2, None)
    assert notes == {"taps.type-1.alone_expected": "none: no bins"}
    fields, _ = references("type-1", tap, Reference(0.9, "", 0.8, 0.05, ""))
    assert (fields["asr_ideal"], fields["rmse_ideal"]) == (0.8, 0.05)


def row(victim, rmse, success):
    return {"victim": victim, "batch": victim, "network": 0, "rmse": rmse, "success": success}


def test_more_success_than_expected_is_an_error():
    """All of twenty reconstructed exactly is an error if half are expected; half of them is not."""
    tap = Tap(verbatim=1.0, alone_expected=0.5, asr=1.0)
    found = violations("type-1", tap, pd.DataFrame([row(v, 1e-5, True) for v in range(20)]), 0.95)
    assert [(broken.measure, broken.reference) for broken in found] == [("verbatim", "alone_expected")]
    half = pd.DataFrame([row(v, 1e-5 if v % 2 else 0.2, False) for v in range(20)])
    few = pd.DataFrame([row(v, 1e-5 if v else 0.2, False) for v in range(3)])  # More, but not significantly.
    assert violations("type-1", tap.replaced(verbatim=2 / 3), few, 0.95) == []
    assert violations("type-1", tap.replaced(verbatim=0.5), half, 0.95) == []
    assert verbatim_fields(half)["verbatim"] == 0.5
    noisy = Tap(verbatim=0.0, asr=1.0, asr_ideal=0.1)
    everyone = pd.DataFrame([row(v, 0.04, True) for v in range(20)])
    assert [broken.measure for broken in violations("type-1", noisy, everyone, 0.95)] == ["asr"]


IMPRINTED = (
    "{title: t, cite: c, leak_model: cnn, server: {imprint: {bins: 64, public: 100, gain: 100}},"
    " method: {rows: {public: 100}}}"
)
NOISY = (
    "{title: t, cite: c, unit: example, example: [{clip_whole: {norm: 4.0}}],"
    " batch: [{gaussian_noise: {multiplier: 0.01, to: sum}}], claim: {none: {reason: r}}}"
)


@pytest.mark.slow
def test_a_run_has_its_references(tmp_path, monkeypatch, capsys):
    """The run of a malicious server reports both, or the reason why one is missing."""

    def report(out: Path, *more: str) -> dict[str, Any]:
        code, printed, err = called(monkeypatch, capsys, "run", "--json", "--out", str(out), *more)
        assert code == 0, err
        found: dict[str, Any] = json.loads(printed)
        return found

    (tmp_path / "attack.yaml").write_text(IMPRINTED)
    (tmp_path / "noisy.yaml").write_text(NOISY)
    small = [
        "--dataset",
        "faces",
        "--victims",
        "4",
        "--leak-batch",
        "3",
        "--taps",
        "type-1",
        "--train-rounds",
        "0",
        "--candidates",
        "4",
    ]
    plain = report(tmp_path / "a", "--attack", str(tmp_path / "attack.yaml"), "--defense", "none", *small)
    tap = plain["taps"]["type-1"]
    assert tap["alone_expected"] == pytest.approx((63 / 64) ** 2)
    assert tap["asr_ideal"] is None
    assert plain["notes"]["taps.type-1.asr_ideal"].startswith("none: ")
    noisy = report(
        tmp_path / "b", "--attack", str(tmp_path / "attack.yaml"), "--defense", str(tmp_path / "noisy.yaml"), *small
    )
    assert 0 <= noisy["taps"]["type-1"]["asr_ideal"] <= 1
    assert noisy["taps"]["type-1"]["rmse_ideal"] > 0
    assert noisy["violations"] == []
