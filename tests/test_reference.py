"""What a server that lies may expect: closed forms against samples, figures measured elsewhere, and an error above them."""

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from command_line import called

from leakbench.attack.search.shrinkage import Shrinkage, shrinkage_of
from leakbench.limits.reference import alone_in_a_bin, ideal
from leakbench.summary.references import surpassed, verbatim_fields


@pytest.mark.parametrize(("bins", "examples"), [(16, 1), (16, 8), (256, 64)])
def test_the_share_that_is_alone_is_that_of_balls_in_bins(bins, examples):
    drawn = torch.randint(bins, (4000, examples), generator=torch.Generator().manual_seed(0))
    alone = (drawn[:, :, None] == drawn[:, None]).sum(2) == 1
    share = alone.double().mean(1)
    assert abs(float(share.mean()) - alone_in_a_bin(bins, examples)) < 4 * float(share.std()) / 4000**0.5 + 1e-12


def test_without_a_prior_the_error_is_sigma_times_the_length():
    """|(x, 1)| sigma; and half of the examples come that close."""
    wide = Shrinkage(torch.zeros(400), torch.eye(400), torch.full((400,), 1e8), 1e8)
    x = torch.rand(1, 400, generator=torch.Generator().manual_seed(1))
    length = float((x.square().sum() + 1).sqrt())
    rmse, reached = ideal(wide, x, 0.01, 0.01 * length)
    assert float(rmse) == pytest.approx(0.01 * length, rel=1e-3)
    assert float(reached) == pytest.approx(0.5, abs=0.02)


def test_the_chance_is_that_of_a_sample():
    rng = torch.Generator().manual_seed(2)
    prior = shrinkage_of(torch.rand(60, 20, generator=rng, dtype=torch.float64))
    x, sigma = torch.rand(20, generator=rng, dtype=torch.float64), 0.05
    variance = (sigma**2 * (x.square().sum() + 1)).expand(20_000)
    read = x + variance.sqrt()[:, None] * torch.randn(20_000, 20, generator=rng, dtype=torch.float64)
    errors = (prior(read, variance) - x).square().mean(1).sqrt()
    for eta in errors.quantile(torch.tensor([0.1, 0.5, 0.9]).double()):
        assert float(ideal(prior, x[None], sigma, float(eta))[1]) == pytest.approx(
            float((errors <= eta).double().mean()), abs=0.02
        )


def row(victim, rmse, success):
    return {"victim": victim, "batch": victim, "rmse": rmse, "success": success}


def test_more_than_may_be_expected_is_an_error():
    """All of twenty verbatim where half are expected is one, half of them is none."""
    tap = {"verbatim": 1.0, "alone_expected": 0.5, "asr": 1.0, "asr_ideal": None}
    found = surpassed("type-1", tap, pd.DataFrame([row(v, 1e-5, True) for v in range(20)]), 0.95)
    assert [(broken["measure"], broken["reference"]) for broken in found] == [("verbatim", "alone_expected")]
    half = pd.DataFrame([row(v, 1e-5 if v % 2 else 0.2, False) for v in range(20)])
    assert surpassed("type-1", {**tap, "verbatim": 0.5}, half, 0.95) == []
    assert verbatim_fields(half)["verbatim"] == 0.5
    noisy = {"verbatim": 0.0, "alone_expected": None, "asr": 1.0, "asr_ideal": 0.1}
    everyone = pd.DataFrame([row(v, 0.04, True) for v in range(20)])
    assert [broken["measure"] for broken in surpassed("type-1", noisy, everyone, 0.95)] == ["asr"]


IMPRINTED = (
    "{title: t, cite: c, leak_model: cnn, server: {imprint: {bins: 64, public: 100, gain: 100}},"
    " method: {rows: {public: 100}}}"
)
NOISY = (
    "{title: t, cite: c, unit: example, example: [{clip_whole: {norm: 4.0}}],"
    " batch: [{gaussian_noise: {multiplier: 0.01, to: sum}}], claim: {none: {reason: r}}}"
)


def test_a_run_has_its_references(tmp_path, monkeypatch, capsys):
    """A lying server's run names both, or why there is none."""

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
