"""Real mechanisms of pfl as transforms, and audits of them: pytest -m pfl."""

import json
import math
import subprocess
import sys

import numpy as np
import pytest
import torch
from command_line import called

from leakbench.cell import Request
from leakbench.cell.accounting import cell_epsilon
from leakbench.cell.budget import plan
from leakbench.cell.cell import hand_out
from leakbench.core.errors import InputError
from leakbench.core.recipe import construct
from leakbench.core.rng import generators
from leakbench.core.types import Clock, Signal
from leakbench.defense.clip import ClipWhole
from leakbench.defense.frameworks import PflMechanism, processed
from leakbench.defense.noise import GaussianNoise
from leakbench.defense.recipe import Defense
from leakbench.privacy.factorization_search import Dense
from leakbench.privacy.participation import Participation

pfl = pytest.importorskip("pfl.privacy", reason="no pfl; docs/frameworks.md has the command")
pytestmark = [pytest.mark.pfl, pytest.mark.filterwarnings("ignore")]

GAUSSIAN = "pfl.privacy.gaussian_mechanism.GaussianMechanism"
LAPLACE = "pfl.privacy.laplace_mechanism.LaplaceMechanism"
CLOCK = Clock(0, 0, 1, 1)
BOUND, NOISE = 0.5, 0.2
FIELDS = {"mechanism": GAUSSIAN, "arguments": {"clipping_bound": BOUND, "relative_noise_stddev": NOISE}}


def updates(lanes=2, members=1, scale=1.0):
    rng = torch.Generator().manual_seed(0)
    shapes = {"w": (60, 40), "b": (70,)}
    return Signal({n: scale * torch.randn(lanes, members, *s, generator=rng) for n, s in shapes.items()})


def flat(grads):
    return torch.cat([g.flatten(2) for g in grads.values()], 2)


def lanes(count, seed=0):
    return generators(seed, "noise", [(lane,) for lane in range(count)])


@pytest.mark.parametrize(("path", "order"), [(GAUSSIAN, 2), (LAPLACE, 1)])
@pytest.mark.parametrize("scale", [1.0, 1e-6])
def test_the_bound_is_on_the_norm_of_the_whole_update(path, order, scale):
    other = {"epsilon": 1.0} if path == LAPLACE else {"relative_noise_stddev": NOISE}
    part = PflMechanism(mechanism=path, arguments={"clipping_bound": BOUND, **other}, step="constrain_sensitivity")
    before = updates(scale=scale)
    lengths = flat(before.grads).norm(order, dim=2, keepdim=True)
    expected = flat(before.grads) * (BOUND / lengths).clamp_max(1.0)
    for rngs in (None, lanes(2)):
        torch.testing.assert_close(flat(part(before, CLOCK, rngs).grads), expected, rtol=1e-5, atol=1e-9)


def test_a_local_mechanism_bounds_and_adds_the_noise_that_its_fact_states():
    part, before = PflMechanism(**FIELDS), updates()
    bounded, after = part(before, CLOCK, None), part(before, CLOCK, lanes(2))
    noise = flat(after.grads) - flat(bounded.grads)
    # 4940 coordinates: the standard deviation is known to 1 %.
    assert float(noise.std()) == pytest.approx(NOISE * BOUND, rel=0.05)
    for signal in (bounded, after):
        [fact] = signal.facts
        assert (fact.kind, fact.each) == ("uncalibrated_noise", True)
        assert fact.std == pytest.approx(NOISE * BOUND, rel=0.05)
    assert abs(float((noise[0] * noise[1]).mean())) < 5 * (NOISE * BOUND) ** 2 / math.sqrt(2470)
    assert torch.equal(flat(part(before, CLOCK, lanes(2)).grads), flat(after.grads))


def test_the_numbers_are_those_of_pfl_called_directly():
    from pfl.stats import MappedVectorStatistics  # noqa: PLC0415

    update = {n: g[0, 0].numpy() for n, g in updates().grads.items()}
    result, _ = pfl.GaussianMechanism(BOUND, NOISE).privatize(MappedVectorStatistics(dict(update)), seed=8)
    ours = processed(lambda: pfl.GaussianMechanism(BOUND, NOISE), update, 7)
    assert all(np.array_equal(ours[n], result[n].astype(np.float32)) for n in update)


def test_central_noise_is_one_noise_on_the_sum():
    part, before = PflMechanism(**FIELDS, step="add_noise"), updates(1, 5)
    after = part(before, CLOCK, lanes(1))
    change = flat(after.grads) - flat(before.grads)
    torch.testing.assert_close(change, change[:, :1].expand_as(change), rtol=1e-4, atol=1e-6)
    total = 5 * flat(after.mean().grads) - 5 * flat(before.mean().grads)
    assert float(total.std()) == pytest.approx(NOISE * BOUND, rel=0.08)
    averaged = Signal({n: g.mean(1, keepdim=True) for n, g in before.grads.items()}, averaged=5)
    torch.testing.assert_close(
        flat(part(averaged, CLOCK, lanes(1)).grads), flat(after.mean().grads), rtol=1e-4, atol=1e-6
    )
    assert torch.equal(flat(part(before, CLOCK, None).grads), flat(before.grads))
    large = Signal({n: 1e6 + g for n, g in before.grads.items()})
    for signal in (after, part(large, CLOCK, None)):
        [fact] = signal.facts
        assert not fact.each and fact.std == pytest.approx(NOISE * BOUND, rel=0.08)


def test_a_class_method_builds_a_mechanism():
    path = f"{GAUSSIAN}.construct_single_iteration"
    part = PflMechanism(mechanism=path, arguments={"clipping_bound": 1.0, "epsilon": 1.0, "delta": 1e-5})
    # Balle and Wang 2018, the analytic Gaussian mechanism at epsilon 1 and delta 1e-5.
    assert part.build().relative_noise_stddev == pytest.approx(3.7306, abs=1e-3)


@pytest.mark.parametrize(
    ("path", "arguments", "message"),
    [
        ("pfl.privacy.privacy_mechanism.CentrallyAppliedPrivacyMechanism", {}, "expected a subclass of .*SplitPrivacy"),
        ("pfl.privacy.privacy_mechanism.get_param_value", {}, "expected a subclass of .*SplitPrivacy"),
        (f"{GAUSSIAN}s", {}, "cannot be imported"),
        (GAUSSIAN, {"clipping_bound": 1.0}, "arguments: .*relative_noise_stddev"),
    ],
)
def test_other_classes_and_arguments_are_refused_in_one_line(path, arguments, message):
    with pytest.raises(InputError, match=message) as raised:
        PflMechanism(mechanism=path, arguments=arguments)(updates(), CLOCK, None)
    assert "\n" not in str(raised.value)


def test_an_audit_of_a_recipe_measures_the_noise_and_the_clip(tmp_path, monkeypatch, capsys):
    recipe = tmp_path / "mine.yaml"
    recipe.write_text(
        "title: t\ncite: c\nunit: client\nclaim: {moments: {unit: client, noise_multiplier: 1.0}}\n"
        f"client: [{{pfl_mechanism: {{mechanism: {GAUSSIAN}, "
        "arguments: {clipping_bound: 2.0, relative_noise_stddev: 0.5}}}]\n"
    )
    asked = ("audit", "--defense", str(recipe), "--dataset", "digits", "--clients", "10", "--clients-per-round", "1")
    code, out, err = called(monkeypatch, capsys, *asked, "--trials", "2000", "--json", "--quiet")
    assert code in (0, 1), err
    told = json.loads(out)
    assert told["sigma_measured"] == pytest.approx(0.5, rel=0.03)
    assert told["clip_holds"] and told["noise_data_independent"] and told["valid"] is None
    # Half of the claimed noise, which the lower bound shows.
    assert told["lower_bound_family"] > told["claimed"]


def test_a_defense_of_both_halves_is_accepted():
    halves = {"client": "constrain_sensitivity", "server": "add_noise"}
    steps = {station: [{"pfl_mechanism": {**FIELDS, "step": step}}] for station, step in halves.items()}
    defense = Defense(
        title="t", cite="c", unit="client", aggregation="secure", **{k: tuple(v) for k, v in steps.items()}
    )
    assert defense.server[0].acts_on == "sum"


BANDED = """
import json, sys
import numpy as np, torch
from pfl.internal.ops import pytorch_ops
from pfl.internal.ops.selector import set_framework_module
set_framework_module(pytorch_ops)
from pfl.privacy.ftrl_mechanism import BandedMatrixFactorizationMechanism
from pfl.stats import MappedVectorStatistics
from types import SimpleNamespace
rounds, separation, size = map(int, sys.argv[1:])
mechanism = BandedMatrixFactorizationMechanism(1.0, rounds, separation, lambda count: SimpleNamespace(cohort_noise_parameter=1.0))
nothing = MappedVectorStatistics({"w": torch.zeros(size)})
noise = [mechanism.add_noise(nothing, 1, seed=1 + t)[0]["w"].double().numpy() for t in range(rounds)]
print(json.dumps([mechanism.query_matrix.tolist(), (np.array(noise) @ np.array(noise).T / size).tolist()]))
"""


@pytest.mark.parametrize(
    ("rounds", "separation", "counted", "true"), [(16, 5, 4, 2.154), (32, 9, 4, 2.415), (128, 33, 4, 3.464)]
)
def test_banded_noise_of_pfl_is_less_than_its_accountant_assumes(tmp_path, rounds, separation, counted, true):
    """pfl 0.6.0 decomposes the Gram matrix X of the columns of C as C C^T, and so normalises its rows instead.

    Its accountant counts the participations of a client, each of sensitivity 1. The framework can be chosen once in a process.
    """
    asked = [sys.executable, "-W", "ignore", "-c", BANDED, *map(str, (rounds, separation, 20_000))]
    done = subprocess.run(asked, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    query, covariance = (np.array(one) for one in json.loads(done.stdout))
    inverse = np.linalg.inv(query)
    # The noise is that of the matrix: 20 000 samples of each entry.
    apart = np.abs(covariance - inverse @ inverse.T)
    assert apart.max() < 6 * np.diag(inverse @ inverse.T).max() / math.sqrt(20_000)
    np.testing.assert_allclose(np.linalg.norm(query, axis=1), 1.0, atol=1e-5)
    part = Participation(separation)
    assert part.count(rounds) == counted
    assert Dense(query).sensitivity(part).value == pytest.approx(true, abs=2e-3)
    # The other order of the factors, C^T C = X, has the sensitivity that is assumed, and less error at the same privacy.
    other = np.flip(np.linalg.cholesky(np.flip(query @ query.T)).T)
    assert Dense(other).sensitivity(part).value == pytest.approx(math.sqrt(counted), abs=1e-3)
    errors = [
        float((one.prefix_deviations() ** 2).mean()) * one.sensitivity(part).value ** 2
        for one in (Dense(other), Dense(query))
    ]
    assert errors[0] < errors[1]


def test_a_bound_from_before_does_not_hold_after_code_that_is_not_read():
    """pfl accepts a negative bound, which makes an update a thousand times longer; only the clip after it counts."""
    step = {"mechanism": "pfl.privacy.privacy_mechanism.NormClippingOnly", "step": "constrain_sensitivity"}
    wild = construct(PflMechanism, {**step, "arguments": {"order": 2, "clipping_bound": -1000.0}})
    noise = GaussianNoise(multiplier=2.0, to="each")

    def valid(*client):
        defense = Defense(title="t", cite="c", unit="client", client=client)
        cell = plan(Request(dataset="digits"), None)
        return cell_epsilon(defense, cell.data, cell.settings, hand_out(cell), None, 1e-5).valid

    after = valid(ClipWhole(norm=100.0), noise)
    assert after is not None
    assert valid(ClipWhole(norm=1.0), wild, ClipWhole(norm=100.0), noise) == after


def test_an_error_of_the_mechanism_is_one_line():
    part = PflMechanism(mechanism=GAUSSIAN, arguments={"clipping_bound": 1.0, "relative_noise_stddev": -0.5})
    with pytest.raises(InputError, match=r"pfl_mechanism: its code raised .*; check its arguments") as raised:
        part(updates(), CLOCK, lanes(2))
    assert "\n" not in str(raised.value)
