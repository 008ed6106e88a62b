"""Details of the accounting that general laws do not check: which draws count, and the text and condition of each sentence."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import torch
from small_table import layout

from leakbench.auditing.noise import _pass_alone
from leakbench.core.types import Fact
from leakbench.measure.metrics_tables import table_scores
from leakbench.privacy.accountants import ORDERS, pld, rdp
from leakbench.privacy.bounds import gaussian_robustness, reconstruction_robustness
from leakbench.privacy.calibration import _unbounded
from leakbench.privacy.caveats import _sampling
from leakbench.privacy.claim import GeyerClaim
from leakbench.privacy.ledger import Phase, stretches
from leakbench.privacy.mechanism import Mechanism
from leakbench.privacy.observers import observations
from tests.privacy.test_privacy_phases import CLAIM, SMALL, at_example, at_server, caveats, every_round, on_batch, valid


def test_only_a_factor_of_root_tensors_is_attributed_to_layers() -> None:
    layers = {"example": (Fact("clip", norm=4 * 2.5),), "batch": (Fact("noise", std=24.0),)}
    (said,) = caveats(layers, "example", CLAIM)
    assert said == "the claim counts noise of 6 times one unit's bound, here it is at least 2.4"
    one = {"example": (Fact("clip", norm=4 * math.sqrt(3)),), "batch": (Fact("noise", std=24.0),)}
    (said,) = caveats(one, "example", CLAIM, tensors=1)
    assert "layer by layer" not in said


@pytest.mark.parametrize(("off", "said"), [(0.0, 0), (1e-7, 0), (1e-5, 1)])
def test_rates_that_differ_by_rounding_are_the_same(off: float, said: int) -> None:
    claimed, found = (Mechanism(6.0, q, 10) for q in (0.1, 0.1 * (1 + off)))
    assert len([*_sampling((claimed,), (found,), "client", SMALL)]) == said


def test_consecutive_stretches_are_merged() -> None:
    """Three stretches of one round each, whose phases also contain the rounds."""
    [one] = stretches(every_round(*[on_batch(6.0)] * 4), SMALL)
    assert (one.first, one.rounds, [phase.rounds for phase in one.phases]) == (0, 4, [4])


def test_the_passes_of_a_fixed_split_follow_from_the_steps() -> None:
    split = dataclasses.replace(SMALL, batch_sampling="split", local_iterations=20)
    assert split.passes() == 2


def test_a_clients_update_is_protected_by_the_last_phase_of_its_round() -> None:
    """The first of two blocks of a round releases nothing of the client's update."""
    bare, last = Phase({}, 4, 3, False, 10), Phase(at_server(6.0), 4, 7, True, 10)
    assert not isinstance(observations((bare, last), "client", SMALL)["global"], str)
    assert isinstance(observations((bare, last), "example", SMALL)["global"], str)


def test_noise_before_an_infinite_clip_is_noise_without_a_clip() -> None:
    noise = Fact("noise", std=24.0)
    said = [_unbounded(noise, math.inf, (Fact("clip", norm=norm),)) for norm in (math.inf, 4.0)]
    assert said[0] == "noise without a clip: 24 against no bound"
    assert said[1] == "noise of 24 before the clip at 4, which bounds nothing that the noise covers"


def test_a_printed_curve_has_a_delta_for_each_round() -> None:
    assert GeyerClaim(noise_multiplier=1.0).deltas(SMALL).shape == (4,)


def test_many_weak_samples_are_counted() -> None:
    """10,000 releases with noise 2e4 and q = 1/2 together are nearly one Gaussian shift of .0025."""
    faint = float(reconstruction_robustness(0.1, (Mechanism(2e4, 0.5, 10_000),)))
    assert faint == pytest.approx(float(gaussian_robustness(np.asarray(0.1), 0.0025)), abs=1e-4) and faint > 0.1003


def test_uses_from_a_fixed_split_are_not_random() -> None:
    split = valid(every_round(*[at_example(6.0)] * 4), "example", batch_sampling="split").by_tap["type-2"]
    drawn = valid(every_round(*[at_example(6.0)] * 4), "example").by_tap["type-2"]
    assert "from a fixed split" in split.reason and "each draws it with q=0.1" in drawn.reason
    assert split.without_draw == pytest.approx(pld((Mechanism(6.0, 1.0, 4),), 1e-5))


@pytest.mark.parametrize("given", [1.5, 1.0])
def test_a_number_above_the_range_is_clamped(given: float) -> None:
    columns = layout()
    truth = torch.zeros(1, 1, columns.width)
    for feature in columns.features:
        truth[0, 0, feature.start] = 1.0
    answer = truth.clone()
    answer[0, 0, [f.start for f in columns.features if not f.values]] = given
    assert float(table_scores(answer, truth, columns).feature_accuracy.mean()) == 1.0


def test_the_noise_of_a_client_counts_as_its_own_in_every_form() -> None:
    once = {"client": (Fact("clip", norm=4.0), Fact("noise", std=24.0))}
    assert "counts on the noise of all 10 clients" in valid(every_round(*[once] * 4), "client").reason


def test_a_visible_use_is_one_of_two_gaussians_at_every_order() -> None:
    """With probability 1 - q nothing is used, with q all of the Gaussian is visible."""
    q, sigma, delta = 0.3, 2.0, 1e-5
    bound = min(
        math.log(1 - q + q * math.exp(a * (a - 1) / (2 * sigma**2))) / (a - 1)
        + math.log1p(-1 / a)
        - math.log(delta * a) / (a - 1)
        for a in ORDERS
        if a * a < 2000
    )
    assert rdp((Mechanism(sigma, q, 1, "visible"),), delta) == pytest.approx(bound, rel=1e-9)


def test_too_little_noise_is_judged_by_coordinate_and_not_by_draw() -> None:
    drawn = torch.randn(64, 500, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert _pass_alone(drawn)
    drawn[:, 7] *= 0.1
    assert not _pass_alone(drawn)
    drawn[:, 7] *= 10
    drawn[7, :30] *= 0.1
    assert _pass_alone(drawn)
