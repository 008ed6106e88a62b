"""The bounds and the floor of a leakage point follow from the observed noise, and are never too strict."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.stats import binomtest

from leakbench.catalog import list_kind
from leakbench.cell import Cell, Request, identity, resolve_cell
from leakbench.cell.cell import hand_out
from leakbench.core.types import Fact, IntegerNoise
from leakbench.data.partition import Shards
from leakbench.execute import execute
from leakbench.experiment.leak_noise import leak_facts, noise_std
from leakbench.experiment.stage_train import fresh_network
from leakbench.experiment.victims import Sent, aware, draw_victims, truth, view_of
from leakbench.federated.client import Network
from leakbench.limits.floor import Floor, floor
from leakbench.limits.guards import Guard, guards
from leakbench.limits.limits import Limits
from leakbench.limits.reference import Reference
from leakbench.measure.statistics import exact_low, wilson
from leakbench.privacy.bounds import Seen, gaussian_robustness
from leakbench.privacy.mechanism import Mechanism
from leakbench.report.bounds import bounds, seen_at
from leakbench.report.bounds import violations as lines_of
from leakbench.report.figures import bound_curve
from leakbench.storage.store import open_run
from leakbench.storage.summary import Summary, Tap
from leakbench.summary.limits import BOUNDS, bounded, limited, violations


def cell(**asked: Any) -> Cell:
    return resolve_cell(
        Request(**{"attack": "cpl", "victims": 3, "train_rounds": 0, "dataset": "digits", **asked}), None
    )


def of(some: Cell, rounds: int = 0) -> dict[str, Guard]:
    return guards(some, leaking(some), rounds, hand_out(some))


def leaking(some: Cell) -> Network:
    """The sigmoid LeNet has 10 tensors, four convolutions and a linear layer with biases; in live runs, the trained network."""
    return Network(*fresh_network(some, trained=some.settings.protocol == "live"))


def test_the_noise_is_that_of_the_leaking_network() -> None:
    """fed_cdp, sigma 6, clipped by layers: over sqrt(10) for the LeNet, for any trained network; sqrt(B) noises in a batch."""
    found = of(cell(defense="fed_cdp", leak_batch=5))
    assert found["type-2"].sigma == pytest.approx(6 / 10**0.5)
    assert found["type-1"].sigma == pytest.approx(6 * (5 / 10) ** 0.5)
    assert of(cell(defense="fed_cdp", leak_batch=2))["type-1"].sigma == pytest.approx(6 * (2 / 10) ** 0.5)
    assert found["type-1"].before == ()


def test_integer_noise_has_an_epsilon_but_no_bound_of_a_leak(monkeypatch: pytest.MonkeyPatch) -> None:
    some, noise = cell(defense="fed_sdp_client"), IntegerNoise("skellam", 16.0, 20.0, 160.0, 64, 0.1)
    facts = (Fact("clip", norm=1.0), Fact("noise", std=0.2, each=True, integer=noise))
    monkeypatch.setattr("leakbench.limits.guards.leak_facts", lambda *_: {"client": facts})
    found = of(some)
    assert found["type-1"].sigma is None
    assert found["type-1"].reason == "none: the bound of a leak assumes Gaussian noise"


def test_the_commonest_label_is_from_public_examples_or_possible_victims() -> None:
    """Half of the public examples are faces, but all possible victims are: an attacker that knows this predicts every label."""
    assert of(cell(dataset="faces"))["type-2"].commonest == 1.0


def test_without_noise_there_is_no_bound() -> None:
    """fed_cdp_valid adds noise after type-2, fed_sdp_server after type-1; without a defense, none is added."""
    assert of(cell(defense="fed_cdp_valid"))["type-2"].reason.startswith(
        "none: noise is added after this leakage point"
    )
    assert of(cell(defense="fed_sdp_server"))["type-1"].reason == "none: trusts the server"
    assert of(cell(defense="fed_alpha_cdp"))["type-2"].reason.startswith("none: data-dependent sensitivity")
    assert all(guard.sigma is None for guard in of(cell()).values())


def table(victims: int, members: int, **changes: Any) -> pd.DataFrame:
    n = victims * members
    columns = {
        "victim": np.repeat(np.arange(victims), members), "batch": np.repeat(np.arange(victims), members),
        "member": np.tile(np.arange(members), victims), "example": np.arange(n), "label": 0, "label_guess": 1,
        "success": False, "null_rmse": np.linspace(0.1, 0.3, n), "eta": 0.1,
        "identified": np.where(np.tile(np.arange(members), victims) == 0, 0.0, np.nan),
        "label_ranked": np.where(np.tile(np.arange(members), victims) == 0, 0.0, np.nan),
    }  # fmt: skip
    return pd.DataFrame({**columns, **changes})


MEASURED = Tap(null_asr_high=0.2, candidates=1000, asr=0.0, identified=0.0, label_accuracy=0.0, label_ranked=0.0)
FIELDS = [bound.field for bound in BOUNDS]
SURE = Guard(sigma=2.0, reason="", unit="example", before=(), commonest=0.1, related="")


def test_each_bound_starts_from_its_own_baseline() -> None:
    """ASR from the baseline's upper limit, identification from 1 / k, labels from the commonest, members from 1 %."""
    found, absent = bounded(MEASURED, table(10, 1), SURE)
    expected = gaussian_robustness([0.2, 1e-3, 0.1, 0.1, 0.01], 0.5)
    assert [found[f] for f in FIELDS] == pytest.approx(expected.tolist())
    assert absent == {}
    assert found["seen"] == {"sigma": 2.0, "releases": 1, "before": ()}


def test_each_guess_of_a_batch_is_a_chance() -> None:
    """Three guesses matched to three examples: three times kappa for ASR and labels, once for both rankings."""
    found, _ = bounded(MEASURED.replaced(batch=3), table(4, 3), SURE)
    expected = gaussian_robustness([0.6, 1e-3, 0.3, 0.1, 0.01], 0.5)
    assert [found[f] for f in FIELDS] == pytest.approx(expected.tolist())
    assert bounded(MEASURED.replaced(batch=6), table(2, 6), SURE)[0]["asr_bound"] == 1.0


def test_uses_of_one_example_are_counted() -> None:
    """An example drawn into three local iterations of a round is released three times; a client's update is one release."""
    rows = table(2, 4, example=[1, 1, 1, 2, 3, 4, 5, 6])
    assert bounded(MEASURED.replaced(batch=4), rows, SURE)[0]["seen"]["releases"] == 3
    whole = dataclasses.replace(SURE, unit="client")
    assert bounded(MEASURED.replaced(batch=4), rows, whole)[0]["seen"]["releases"] == 1


def test_a_missing_bound_has_a_reason() -> None:
    found, absent = bounded(MEASURED, table(5, 1), dataclasses.replace(SURE, sigma=None, reason="none: no clip"))
    assert [found[f] for f in (*FIELDS, "seen")] == [None] * 6
    assert set(absent.values()) == {"none: no clip"}
    found, absent = bounded(MEASURED, table(5, 1), dataclasses.replace(SURE, related="none: alike"))
    assert found["asr_bound"] is not None
    others = ("identified_bound", "label_bound", "label_ranked_bound", "member_tpr_bound")
    assert absent == dict.fromkeys(others, "none: alike")


def test_the_model_of_the_live_protocol_depends_on_its_data() -> None:
    """Leaks of round 3 come after three rounds of released models; those of round 0 after none."""
    some = cell(defense="fed_cdp_valid", protocol="live", train_rounds=5, leak_rounds=("0", "3"))
    assert of(some, 0)["type-1"].before == ()
    (before,) = of(some, 3)["type-1"].before
    assert (before.noise_multiplier, before.sampling_rate, before.sampling) == (6.0, 0.05, "mixture")
    assert (before.steps, before.mechanisms[0].steps) == (3, some.settings.federation.local_iterations)
    later = bounded(MEASURED, table(5, 1), of(some, 3)["type-1"])[0]["identified_bound"]
    assert later > bounded(MEASURED, table(5, 1), of(some, 0)["type-1"])[0]["identified_bound"]


def test_clients_with_few_labels_have_no_label_bound() -> None:
    some = cell(defense="fed_cdp", protocol="live", train_rounds=5)
    few = dataclasses.replace(some.settings.federation, partition=Shards())
    alike = dataclasses.replace(some, settings=dataclasses.replace(some.settings, federation=few))
    assert of(alike, 0)["type-2"].related == ""
    assert of(alike, 0)["type-1"].related.startswith("none: a client's examples are alike")
    assert of(some, 0)["type-1"].related == ""


def test_a_measurement_above_its_bound_is_a_violation() -> None:
    """All ten are identified although the bound is .0048: the numbers, on the terminal and the page."""
    rows = table(10, 1, identified=1.0)
    tap = MEASURED.replaced(identified=1.0)
    tap = tap.replaced(**bounded(tap, rows, SURE)[0])
    (found,) = violations("type-2", tap, rows)
    low = binomtest(10, 10).proportion_ci(method="exact").low
    assert found.low == pytest.approx(low)
    assert (found.tap, found.measure, found.value) == ("type-2", "identified", 1.0)
    (line,) = lines_of(Summary(violations=[found]))
    assert line.startswith(
        "error: example gradient (type-2): identified 1.00 (at least 0.69, with 95 % confidence in all bounds of the run)"
    )
    assert line.endswith("the guarantee does not hold, or a bug is here")


@pytest.mark.parametrize("measure", ["success", "label_guess"])
def test_each_measurement_is_compared_with_its_own_bound(measure: str) -> None:
    rows = table(40, 1, **{measure: True if measure == "success" else 0})
    told = float((rows["label_guess"] == 0).mean())
    tap = MEASURED.replaced(asr=float(rows["success"].mean()), label_accuracy=told)
    tap = tap.replaced(**bounded(tap, rows, SURE)[0])
    assert [v.measure for v in violations("t", tap, rows)] == ["asr" if measure == "success" else "label_accuracy"]


def test_labels_ranked_right_too_often_are_a_violation() -> None:
    """28 of 40, where noise of sigma 2 allows .22: as for a defense whose real noise is a tenth of the declared one."""
    rows = table(40, 1, label_ranked=[1.0] * 28 + [0.0] * 12)
    tap = MEASURED.replaced(label_ranked=0.7, **bounded(MEASURED, rows, SURE)[0])
    (found,) = violations("type-2", tap, rows)
    assert (found.measure, found.bound) == ("label_ranked", pytest.approx(float(gaussian_robustness(0.1, 0.5))))
    assert "example gradient (type-2): label ranked 0.70 (at least 0.53" in lines_of(Summary(violations=[found]))[0]


def test_many_bounds_share_one_error_rate() -> None:
    """Five of ten above a bound of .2 at one leakage point and alone would be a false alarm in one run of forty; nine points have
    nine chances."""
    rows = table(10, 1, identified=[1.0] * 6 + [0.0] * 4)
    held = {name: None for name in FIELDS} | {"identified_bound": 0.25}
    tap = MEASURED.replaced(identified=0.6, **held)
    assert [found.measure for found in violations("t", tap, rows)] == ["identified"]
    assert violations("t", tap, rows, 1 - 0.05 / 45) == []
    (found,) = violations("t", tap, rows, 0.95)
    assert found.low == pytest.approx(binomtest(6, 10).proportion_ci(method="exact").low)


def test_all_leakage_points_of_a_run_share_one_error_rate() -> None:
    """Two of ten are identified, where the bound is .0048: an error in a run of one leakage point, not in a run of forty."""
    rows = table(10, 1, identified=[1.0] * 2 + [0.0] * 8, rmse=0.5)
    limits = Limits(SURE, Floor(None, None, ""), Reference(None, "", None, None, ""))
    of_points = {points: limited("t", MEASURED.replaced(identified=0.2), rows, limits, points)[2] for points in (1, 40)}
    assert [found.measure for found in of_points[1]] == ["identified"]
    assert of_points[40] == []


def test_every_observation_is_a_release_of_the_victim() -> None:
    """Four observations at sigma 2 tell as much as one at sigma 1."""
    found, _ = bounded(MEASURED, table(10, 1), dataclasses.replace(SURE, views=4))
    assert found["seen"]["releases"] == 4
    assert found["identified_bound"] == pytest.approx(float(gaussian_robustness(1e-3, 1.0)))


def test_the_rate_of_found_members_is_compared_with_its_own_bound() -> None:
    """All of forty found at 1 % false positives, where noise of sigma 2 allows 3.4 %; none if no rate was computed."""
    rows = table(40, 1, member_found=1.0)
    tap = MEASURED.replaced(member_tpr=1.0, **bounded(MEASURED, rows, SURE)[0])
    (found,) = violations("type-2", tap, rows)
    assert (found.measure, found.bound) == ("member_tpr", pytest.approx(float(gaussian_robustness(0.01, 0.5))))
    assert violations("type-2", tap.replaced(member_tpr=None), rows.drop(columns="member_found")) == []


def test_no_two_bounds_share_a_name() -> None:
    for what in ("measure", "field", "said", "name"):
        assert len({getattr(bound, what) for bound in BOUNDS}) == len(BOUNDS)


def test_chance_is_not_a_violation() -> None:
    """One of ten above a bound of .0048 happens in one run of twenty, and Wilson's limit would call it a violation."""
    rows = table(10, 1, identified=[1.0] + [0.0] * 9)
    tap = MEASURED.replaced(identified=0.1, **bounded(MEASURED, rows, SURE)[0])
    assert wilson(1, 10)[0] > (tap.identified_bound or 0.0)
    assert violations("type-2", tap, rows) == []


@pytest.mark.parametrize(("successes", "trials"), [(1, 10), (5, 10), (9, 50), (10, 10)])
def test_the_exact_limit_is_clopper_and_pearsons(successes: int, trials: int) -> None:
    outcome = np.arange(trials) < successes
    expected = binomtest(successes, trials).proportion_ci(method="exact").low
    assert exact_low(outcome, np.arange(trials)) == pytest.approx(expected)
    assert exact_low(outcome.repeat(3), np.arange(trials).repeat(3)) <= expected + 0.02
    assert exact_low([], []) == 0


NOISY = [(name, tap) for name in ("fed_cdp", "fed_cdp_algorithm1", "fed_cdp_valid", "fed_sdp_client", "fed_sdp_server",
                                       "distributed_skellam", "distributed_discrete_gaussian")
         for tap in ("type-2", "type-1", "type-0", "global")]  # fmt: skip


@pytest.mark.parametrize(("name", "tap"), NOISY)
def test_the_noise_of_the_floor_equals_the_added_noise(name: str, tap: str) -> None:
    """The leak minus the noiseless leak, measured at every point of five defenses."""
    some = cell(defense=name, leak_batch=3, clients=4, clients_per_round=4)
    model, weights = fresh_network(some, trained=False)
    victims = draw_victims(some, tap, 0, hand_out(some))
    view = aware(view_of(some, tap, 0, victims, torch.arange(3), Sent(Network(model, weights))), some)
    inputs, labels, _ = truth(some, tap, victims)
    bare = view.respond(inputs, torch.nn.functional.one_hot(labels, 10).float())
    noise = torch.cat([(view.update[n] - bare[n]).flatten() for n in bare])
    cohort = victims.indices.shape[1]
    f = some.settings.federation
    expected = noise_std(leak_facts(some, leaking(some), 0), tap, 3, cohort, 1, f.learning_rate)
    if isinstance(expected, str):
        assert expected == "none: no noise"
        assert float(noise.abs().max()) < 1e-5
    else:
        assert float(noise.std()) == pytest.approx(expected, rel=0.03)


def test_defenses_without_a_floor() -> None:
    """Noise scaled by the data; noise of one local iteration that changes the next one."""
    some = cell(defense="fed_alpha_cdp")
    assert str(noise_std(leak_facts(some, leaking(some), 0), "type-2", 5, 1, 1, 0.05)).startswith(
        "none: data-dependent"
    )
    plain = cell(defense="fed_cdp")
    done = leak_facts(plain, leaking(plain), 0)
    assert str(noise_std(done, "type-1", 5, 1, 2, 0.05)).startswith("none: the noise of one local iteration")
    assert isinstance(noise_std(done, "type-2", 5, 1, 2, 0.05), float)


@pytest.mark.parametrize("public", [torch.full((5, 1, 8, 8), 0.5), torch.rand(1, 1, 8, 8)])
def test_public_pictures_that_are_all_alike_give_no_floor(public: torch.Tensor) -> None:
    """With constant pictures, or a single one, their deviation is not a prior."""
    some = cell(defense="noise_gaussian", taps=("type-2",))
    targets = torch.zeros(len(public), dtype=torch.int64)
    alike = dataclasses.replace(some.data, test_inputs=public, test_targets=targets, public=None)
    some = dataclasses.replace(some, data=alike)
    model, weights = fresh_network(some, trained=False)
    found = floor(some, lambda _: Sent(Network(model, weights)), "type-2", 0, hand_out(some))
    assert found.rmse is None
    assert found.note == "none: the public examples are all alike, so that their deviation cannot be a prior"


@pytest.mark.slow
def test_every_defense_has_a_bound_or_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    """For the whole catalog; the floor, here for one victim and few probes, is at most the error of the prior's mean."""
    monkeypatch.setattr("leakbench.limits.floor.VICTIMS", 1)
    monkeypatch.setattr("leakbench.limits.floor.PROBES", 4)
    for entry in list_kind("defenses"):
        model = "lenet_cpl" if entry["name"].startswith("fedkl") else None  # A lock goes behind a convolution.
        some = cell(defense=entry["name"], taps=("type-2", "type-1"), leak_batch=2, model=model)
        model, weights = fresh_network(some, trained=False)
        for tap, guard in of(some).items():
            assert (guard.sigma is None) == guard.reason.startswith("none: "), (entry["name"], tap)
        for tap in some.settings.taps:
            sent = Sent(Network(model, weights))
            found = floor(some, lambda _, sent=sent: sent, tap, 0, hand_out(some))
            assert (found.rmse is None) == found.note.startswith("none: ")
            if found.rmse is not None:
                assert 0 < found.rmse <= float(some.data.test_inputs.var(0).mean()) ** 0.5 + 1e-6


@pytest.mark.slow
def test_a_run_prints_its_bounds(tmp_path: Path) -> None:
    """Identification behind fed_cdp: the summary, the lines, and the curve that passes through the bound at eta."""
    some = cell(defense="fed_cdp", attack="identification", victims=20, taps=("type-2", "type-1"))
    with open_run(tmp_path / "run", identity(some, "test")) as run:
        summary = json.loads(json.dumps(execute(some, run, lambda phase, done, total: None).as_dict()))
    tap = summary["taps"]["type-2"]
    assert tap["seen"]["sigma"] == pytest.approx(6 / 10**0.5)
    assert tap["identified_bound"] == pytest.approx(float(gaussian_robustness(1e-3, 10**0.5 / 6)))
    assert summary["violations"] == []
    said = bounds(Summary.of(summary))
    assert any(
        line.startswith("example gradient (type-2): at most ASR ") and "identified 0.0052" in line for line in said
    )
    rows = pd.read_parquet(tmp_path / "run" / "rows.parquet")
    rows = rows[rows["tap"] == "type-2"].assign(null_rmse=lambda r: np.where(r["null_success"], 0.0, 1.0))
    curve = bound_curve(rows, seen_at(Summary.of(summary))["type-2"], np.array([rows["eta"].iloc[0], 1.0]))
    assert curve.tolist() == pytest.approx([tap["asr_bound"], 1.0])


def test_facts_are_kept_in_the_summary() -> None:
    seen = Seen(1.5, 2, (Mechanism(6.0, 0.05, 40, "visible"),))
    summary = {"taps": {"type-1@3": {"seen": json.loads(json.dumps(dataclasses.asdict(seen)))}, "type-2@3": {}}}
    assert seen_at(Summary.of(summary)) == {"type-1@3": seen}


def test_the_bound_never_falls_with_the_threshold() -> None:
    """Five batches of two, the first succeeds for both examples in two batches: below and above that the curve only rises."""
    rows = table(5, 2, null_rmse=[0.1, 0.9, 0.2, 0.9, 0.9, 0.3, 0.9, 0.9, 0.4, 0.9])
    curve = bound_curve(rows, Seen(1.0, 1), np.linspace(0, 1, 51))
    assert (np.diff(curve) >= 0).all()
    assert curve[0] == pytest.approx(float(gaussian_robustness(min(1.0, 2 * wilson(0, 5)[1]), 1.0)))
    assert curve[-1] == 1.0


@pytest.mark.slow
def test_given_labels_are_not_compared_with_a_bound(tmp_path: Path) -> None:
    """They were given, not leaked: otherwise every valid guarantee would seem violated."""
    asked = {"dataset": "digits", "defense": "fed_cdp_valid", "attack": "cpl_oracle_labels", "train_rounds": 0}
    cell = resolve_cell(Request(**asked, victims=10, iterations=1, taps=("type-1",), leak_batch=1, candidates=20), None)
    with open_run(tmp_path / "run", identity(cell, "test")) as run:
        summary = execute(cell, run, lambda *_: None).as_dict()
    assert summary["taps"]["type-1"]["label_accuracy"] == 1.0
    assert summary["taps"]["type-1"]["label_bound"] is None
    assert "granted" in summary["notes"]["taps.type-1.label_bound"]
    assert summary["violations"] == []
