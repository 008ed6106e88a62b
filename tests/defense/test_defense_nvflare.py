"""NVIDIA FLARE's filters against closed forms, numpy and distributions; where nvflare is installed, also against its own code."""

import math

import dp_accounting
import numpy as np
import pytest
import torch
from dp_accounting import pld
from hypothesis import given, settings
from hypothesis import strategies as st
from probes import facts_of

from leakbench.core.rng import generators
from leakbench.core.types import Clock, Fact, Local, Signal
from leakbench.data.recipe import Federation
from leakbench.defense import Defense
from leakbench.defense.clip import ClipWhole
from leakbench.defense.guess import on_a_guess, unlikelihood
from leakbench.defense.noise import GaussianNoise, laplace
from leakbench.defense.nvflare import PercentileFilter, PercentileNoise, Saturated, SparseVector, percentile
from leakbench.defense.transform import Stations
from leakbench.privacy.calibration import calibrated

NOW = Clock(0, 0, 1, 1)
BESIDE = Local(None, torch.zeros(2, 1, 1), torch.zeros(2, 1, 1))  # type: ignore[arg-type]


def signal(size: float = 1.0, lanes: int = 1, members: int = 1, seed: int = 3, more: int = 1) -> Signal:
    """Return tensors `b` (3, 4 more) and `a` (8 more): 20 more coordinates, named against the order of the alphabet."""
    rng = torch.Generator().manual_seed(seed)
    shapes = {"b": (3, 4 * more), "a": (8 * more,)}
    return Signal({n: size * torch.randn(lanes, members, *s, generator=rng) for n, s in shapes.items()}, local=BESIDE)


def flat(signal: Signal) -> torch.Tensor:
    return torch.cat([g.flatten(2) for g in signal.grads.values()], 2)


def drawing(lanes: int = 1, seed: int = 0):
    return generators(seed, "noise", [(lane,) for lane in range(lanes)])


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 10_000), st.floats(0, 1), st.integers(1, 30))
def test_the_percentile_is_numpys(seed, share, count):
    sizes = torch.randn(2, 3, count, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).abs()
    sizes[0, 0, : count // 2] = 0
    np.testing.assert_allclose(percentile(sizes, share)[..., 0], np.percentile(sizes.numpy(), 100 * share, axis=2))
    kept = sizes[0, 0][sizes[0, 0] > 0].numpy()
    np.testing.assert_allclose(percentile(sizes, share, above_zero=True)[0, 0, 0], np.percentile(kept, 100 * share))


def test_a_percentile_of_zeros_or_of_infinite_values_is_defined():
    assert percentile(torch.zeros(1, 4), 0.95, above_zero=True).tolist() == [[0.0]]
    assert percentile(torch.full((1, 4), torch.inf), 0.3).tolist() == [[torch.inf]]


def test_the_filter_cuts_off_the_small_and_clamps_the_large():
    """Over both tensors: 0.1, 0.2, ..., 1.0. The 25th percentile is 0.325; gamma is .5 and, over 2 local iterations, 1.0."""
    g = {"a": torch.tensor([[[0.1, -0.9, 0.3, 0.4, -0.5]]]), "b": torch.tensor([[[-0.2, 0.6, 0.7, 0.8, 1.0]]])}
    one = PercentileFilter(share=0.25, gamma=0.5)(Signal(g, local=BESIDE), NOW, None)
    assert one.grads["a"].tolist() == [[[0.0, -0.5, 0.0, pytest.approx(0.4), -0.5]]]
    assert one.grads["b"].tolist() == [[[0.0, 0.5, 0.5, 0.5, 0.5]]]
    two = Clock(0, 1, 1, 2)
    both = {
        per_step: PercentileFilter(0.25, 0.5, per_step)(Signal(g, local=BESIDE), two, None)
        for per_step in (True, False)
    }
    assert both[True].grads["b"].tolist() == [[[0.0, *g["b"][0, 0, 1:].tolist()]]]
    assert all(torch.equal(g, one.grads[n]) for n, g in both[False].grads.items())


def test_the_filter_bounds_each_member_and_adds_no_noise():
    """With p = 20 coordinates the L2 norm is at most gamma L sqrt(20)."""
    after = PercentileFilter(gamma=0.1)(signal(100.0, lanes=2, members=3), Clock(0, 4, 1, 5), None)
    assert after.facts == (Fact("clip", norm=0.5 * math.sqrt(20)),)
    torch.testing.assert_close(after.sensitivity, torch.full((2,), 0.5 * math.sqrt(20)))
    assert (flat(after).norm(dim=2) <= 0.5 * math.sqrt(20) * (1 + 1e-6)).all()


def test_noise_over_the_bound_of_the_clamp_has_the_epsilon_of_a_clip():
    """The filter is a clip for a later noise, and gives nothing alone."""
    federation = Federation(rounds=2, batch=5, examples_per_client=20, clients=30, clients_per_round=10)
    found = {}
    for name, first in (("clamp", PercentileFilter()), ("clip", ClipWhole(3.0))):
        for noise in ((), (GaussianNoise(2.0, "each"),)):
            defense = Defense(title="t", cite="c", unit="client", client=(first, *noise))
            noises, why = calibrated(facts_of(defense, federation), "client", federation.batch)
            found[name, len(noise)] = ([n.std / n.bound for n in noises], why)
    assert found["clamp", 0] == found["clip", 0] == ([], "no noise")
    assert found["clamp", 1] == (pytest.approx(found["clip", 1][0]), "")
    assert found["clip", 1][0] == pytest.approx([2.0])


def test_the_clamp_has_no_bound_at_the_server():
    """The ledger does not count coordinates there."""
    assert PercentileFilter()(Signal(signal().grads), NOW, None).facts[0].norm == math.inf


def test_nan_is_not_hidden():
    broken = signal()
    broken.grads["a"][:] = math.nan
    for part in (SparseVector(fraction=0.5), PercentileNoise(sigma0=1.0)):
        assert part(broken, NOW, drawing()).grads["a"].isnan().any()
    # A part that states a bound counts the update as zero.
    after = PercentileFilter()(broken, NOW, drawing())
    assert all((g == 0).all() for g in after.grads.values()) and after.zeroed["update"].sum() == after.lanes


def test_an_attacker_repeats_the_zeros_and_the_clamp_of_the_update():
    """The update is -3 times a gradient (learning rate 3); a clamped coordinate may be any value beyond the bound."""
    part = PercentileFilter(share=0.25, gamma=0.5)
    truth = {"a": torch.tensor([[0.1, -0.9, 0.2, 0.4]]), "b": torch.tensor([[0.3, 0.6, 0.02, -0.15]])}

    def sent(grads, transform):
        after = transform(Signal({n: -3 * g[:, None] for n, g in grads.items()}, local=BESIDE), NOW, None)
        return {n: g[:, 0] / -3 for n, g in after.grads.items()}

    seen = sent(truth, part)
    (guessed,) = on_a_guess(Stations(client=(part,)), seen).client
    assert guessed == Saturated(seen, 0.5, True)
    for name, g in sent(truth, guessed).items():
        torch.testing.assert_close(g, seen[name])
    other = {n: torch.full_like(g, 2.0) for n, g in truth.items()}
    leaf = {n: g.clone().requires_grad_() for n, g in other.items()}
    found = sent(leaf, guessed)
    # Clamped at +-1/6: coordinates above it on the right side agree; all others keep their derivative, zeros have none.
    assert found["a"].tolist() == [[0.0, 2.0, pytest.approx(1 / 6), pytest.approx(1 / 6)]]
    assert found["b"].tolist() == [[pytest.approx(1 / 6), pytest.approx(1 / 6), 0.0, 2.0]]
    sum(g.sum() for g in found.values()).backward()
    assert leaf["a"].grad.tolist() == [[0.0, 1.0, 0.0, 0.0]]
    assert leaf["b"].grad.tolist() == [[0.0, 0.0, 0.0, 1.0]]


def test_an_update_without_a_clamp_is_only_masked():
    """One largest coordinate is not clamped."""
    seen = {"a": torch.tensor([[0.0, -0.2, 0.1]])}
    after = Saturated(seen, 0.01, True)(Signal({"a": torch.tensor([[[5.0, 5.0, 5.0]]])}), NOW, None)
    assert after.grads["a"].tolist() == [[[0.0, 5.0, 5.0]]]


@pytest.mark.parametrize("coordinates", [20, 34_720, 42_336])
def test_the_epsilon_of_the_sparse_vector_technique_grows_with_the_coordinates(coordinates):
    """FLARE counts epsilon + c noise_var. The truth is between c noise_var and the selection of all d coordinates."""
    part = SparseVector()
    lower, upper = part.spent(coordinates)
    count = math.ceil(coordinates / 10)
    assert lower == pytest.approx(count / 10)
    e1, e2 = part._split(count)
    assert e1 + e2 == pytest.approx(0.1)
    assert e2 / e1 == pytest.approx((2 * count) ** (2 / 3))
    assert upper == pytest.approx(lower + e1 + e2 * coordinates / count)
    assert lower <= count / 10 + 0.1 <= upper <= lower + 1.001


def test_the_published_epsilons_are_those_of_the_recipe():
    """The networks `cnn` of MNIST and CIFAR-10 have 34,720 and 42,336 parameters; users report 70,333 for 7 million."""
    assert SparseVector().spent(34_720)[0] == pytest.approx(347.2)
    assert SparseVector().spent(42_336)[0] == pytest.approx(423.4)
    assert SparseVector().spent(7_033_290)[0] == pytest.approx(70_333, abs=0.5)


@pytest.mark.parametrize(("coordinates", "wanted"), [(34_720, 40.71), (42_336, 46.96)])
def test_a_delta_lowers_the_epsilon_of_the_noise_but_little(coordinates, wanted):
    """At delta 1e-5, c Laplace mechanisms of epsilon 0.1 each, by their privacy loss distribution."""
    accountant = pld.PLDAccountant()
    accountant.compose(dp_accounting.LaplaceDpEvent(1 / SparseVector().noise_var), SparseVector().selected(coordinates))
    assert accountant.get_epsilon(1e-5) == pytest.approx(wanted, abs=0.01)


def test_two_updates_reach_the_lower_bound():
    """Updates of gamma and of -gamma everywhere are selected alike; the ratio of the densities of a Laplace value is e^0.1."""
    part = SparseVector(fraction=0.5, gamma=1.0)
    up, down = (Signal({"a": s * torch.full((1, 1, 1000), 9.0)}) for s in (1.0, -1.0))
    one, other = (part(x, NOW, drawing()).grads["a"] for x in (up, down))
    assert torch.equal(one != 0, other != 0)
    scale = 2 * part.gamma / part.noise_var
    torch.testing.assert_close((one - other)[one != 0], torch.full(((one != 0).sum(),), 2.0), rtol=1e-4, atol=1e-4)
    assert 2.0 / scale == pytest.approx(part.noise_var)


def test_one_in_ten_coordinates_is_sent_with_laplace_noise():
    """With replacement, c draws of A accepted ones give A (1 - (1 - 1 / A)^c) different ones: .0906 of all if A is a half."""
    part, many = SparseVector(gamma=0.01), Signal({"a": torch.full((1, 1, 100_000), 0.004)})
    sent = part(many, Clock(0, 1, 1, 2), drawing()).grads["a"].flatten()
    share = float((sent != 0).float().mean())
    assert share == pytest.approx(0.5 * (1 - math.exp(-0.2)), abs=0.003)
    noise = sent[sent != 0].double() - 0.004
    scale = 2 * 2 * 0.01 / 0.1
    assert float(noise.abs().mean()) == pytest.approx(scale, rel=0.03)
    assert float(noise.square().mean()) == pytest.approx(2 * scale**2, rel=0.08)
    without = SparseVector(gamma=0.01, replace=False)(many, NOW, drawing()).grads["a"]
    assert int((without != 0).sum()) == 10_000


def test_the_number_of_passes_has_the_probability_of_laplace_noise():
    """A coordinate v passes with P(v + Laplace(b) >= threshold); tau is so large that its noise does not matter."""
    part = SparseVector(fraction=0.05, epsilon=1e6, gamma=1.0, tau=2e-3)
    values = torch.cat([torch.zeros(20_000), torch.full((20_000,), 1e-3), torch.full((20_000,), 4e-3)])[
        None, None
    ].double()
    scale = 2 * 3000 / part._split(3000)[1]
    passes = part._accepted_in(values, drawing())[0, 0]
    for place, value in enumerate((0.0, 1e-3, 4e-3)):
        missing = (2e-3 - value) / scale
        chance = 0.5 * math.exp(-missing) if missing > 0 else 1 - 0.5 * math.exp(missing)
        mine = passes[20_000 * place : 20_000 * (place + 1)]
        # The noise of the threshold has a scale of 3 % of that of a pass.
        assert float((mine == 1).float().mean()) == pytest.approx(chance, abs=0.04)
        assert float((mine == 2).float().mean()) == pytest.approx(chance * (1 - chance), abs=0.03)


def test_large_coordinates_are_preferred_with_a_large_epsilon():
    """The noise of the selection is then small: the two coordinates above the threshold are sent."""
    part = SparseVector(fraction=0.2, epsilon=1e6, noise_var=1e6, gamma=1.0, tau=0.5, replace=False)
    g = torch.tensor([[[0.1, -0.9, 0.2, 0.1, 0.8, 0.0, 0.1, 0.2, 0.1, 0.1]]])
    sent = part(Signal({"a": g}), NOW, drawing()).grads["a"]
    torch.testing.assert_close(sent, g * (g.abs() > 0.5), atol=1e-4, rtol=0)


def test_lanes_draw_alone_and_an_attacker_runs_only_the_clamp():
    both, part = signal(lanes=2), SparseVector(gamma=0.5)
    alone = Signal({n: g[1:] for n, g in both.grads.items()})
    together = flat(part(both, NOW, drawing(2)))
    assert torch.equal(together[1:], flat(part(alone, NOW, generators(0, "noise", [(1,)]))))
    torch.testing.assert_close(flat(part(both, NOW, None)), flat(both).clamp(-0.5, 0.5))
    seen = {n: g[:, 0] for n, g in part(both, NOW, drawing(2)).grads.items()}
    (guessed,) = on_a_guess(Stations(client=(part,)), seen).client
    after = guessed(both, NOW, None)
    for n, g in after.grads.items():
        torch.testing.assert_close(g, both.grads[n].clamp(-0.5, 0.5) * (seen[n][:, None] != 0))


def test_the_law_of_the_values_is_laplace():
    """By hand: |seen - guess| / b over the values that are not zero, b their mean magnitude, 2."""
    seen, guess = {"a": torch.tensor([[0.0, 1.0, -3.0]])}, {"a": torch.tensor([[9.0, 2.0, 0.0]])}
    found = unlikelihood(Stations(client=(SparseVector(),)), guess, seen)
    torch.testing.assert_close(found, torch.tensor([(1 + 3) / 2.0]))


def test_the_noise_is_a_multiple_of_a_percentile():
    """Half of the coordinates are zero and do not count; the 95th percentile of the others, all of magnitude 2, is 2."""
    g = torch.cat([torch.zeros(50_000), torch.full((50_000,), -2.0)]).repeat(2, 1, 1).transpose(0, 1)
    noise = PercentileNoise(sigma0=0.3)(Signal({"a": g}), NOW, drawing()).grads["a"] - g
    assert float(noise.std()) == pytest.approx(0.6, rel=0.02)
    assert not torch.equal(noise[0, 0], noise[0, 1])
    zero = Signal({"a": torch.zeros(1, 1, 5)})
    assert torch.equal(PercentileNoise(sigma0=0.3)(zero, NOW, drawing()).grads["a"], zero.grads["a"])


@pytest.mark.parametrize("sigma0", [0.1, 1.0, 10.0, 50.0])
def test_the_leaked_update_shows_the_scale_of_its_noise(sigma0):
    """Within 20 % for a gradient of which most coordinates are small. The likelihood at the truth is then d / 2."""
    rng = torch.Generator().manual_seed(5)
    truth = {"a": torch.randn(1, 40_000, generator=rng).pow(3)}
    part = PercentileNoise(sigma0=sigma0)
    seen = {
        n: g[:, 0] for n, g in part(Signal({n: g[:, None] for n, g in truth.items()}), NOW, drawing()).grads.items()
    }
    found = unlikelihood(Stations(client=(part,)), truth, seen)
    assert math.sqrt(20_000 / float(found)) == pytest.approx(1.0, rel=0.2)
    assert unlikelihood(Stations(client=(PercentileNoise(sigma0=0.0),)), truth, seen) is None


def test_neither_noise_has_an_epsilon_for_a_stated_reason():
    for part, why in ((SparseVector(), "Laplace"), (PercentileNoise(sigma0=1.0), "percentile")):
        facts = part(signal(), NOW, None).facts
        assert [fact.kind for fact in facts] == ["other", "uncalibrated_noise"]
        assert all(why in fact.reason for fact in facts)


# FLARE's own code. Its draws are replaced by functions that return what the test prescribes.


def dxo_of(update, steps):
    data = {n: g[0, 0].numpy().copy() for n, g in update.grads.items()}
    dxo = flare("apis.dxo")
    return dxo.DXO(dxo.DataKind.WEIGHT_DIFF, data, meta={dxo.MetaKey.NUM_STEPS_CURRENT_ROUND: steps})


def flare(module):
    return pytest.importorskip(f"nvflare.{module}", reason="nvflare is not installed: pip install nvflare==2.9.0")


def filtered(part, update, steps):
    fl_ctx, shareable = flare("apis.fl_context").FLContext(), flare("apis.shareable").Shareable()
    return part.process_dxo(dxo_of(update, steps), shareable, fl_ctx)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.95])
@pytest.mark.parametrize(("gamma", "steps"), [(0.01, 1), (0.3, 1), (0.3, 7)])
def test_the_percentile_filter_is_flares_in_every_coordinate(share, gamma, steps):
    update = signal(more=10)
    theirs = filtered(flare("app_common.filters").PercentilePrivacy(100 * share, gamma), update, steps).data
    ours = PercentileFilter(share, gamma)(update, Clock(0, steps - 1, 1, steps), None)
    for name, g in ours.grads.items():
        torch.testing.assert_close(g[0, 0], torch.from_numpy(theirs[name]).to(g), rtol=1e-6, atol=1e-9)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("replace", [True, False])
@pytest.mark.parametrize(("fraction", "steps"), [(0.1, 1), (0.6, 3), (0.9, 1), (1.0, 2)])
def test_the_sparse_vector_technique_is_flares_in_every_coordinate(monkeypatch, fraction, steps, replace):
    """numpy's draws follow ours: the passes in which coordinates are accepted, which of them are selected, and their noise."""
    update, part = signal(1e-5, more=10), SparseVector(fraction=fraction, replace=replace, noise_var=5.0)
    ours = part(update, Clock(0, steps - 1, 1, steps), drawing()).grads
    values = (flat(update).double() / steps).clamp(-part.gamma, part.gamma)
    rngs, count = drawing(), part.selected(200)  # The same draws again: the noise, then the passes.
    each = (2 * part.gamma / 5.0 * laplace(values, rngs, 1), part._accepted_in(values, rngs))
    noise, passes = (
        dict(zip(ours, t[0, 0].split([g[0, 0].numel() for g in ours.values()]), strict=True)) for t in each
    )
    sent = {n: ours[n][0, 0].flatten().nonzero()[:, 0] for n in sorted(ours)}
    last = each[1].kthvalue(count).values

    def script():
        yield 0.0, part.gamma / part._split(count)[0]  # The threshold.
        for now in range(1, int(last) + 1):
            for name in sent:
                left = passes[name][passes[name] >= now]
                if len(left):
                    yield np.where(left == now, 1e9, -1e9), 2 * count * part.gamma / part._split(count)[1]
        for name, chosen in sent.items():
            if len(chosen):
                yield noise[name][chosen].numpy(), 2 * part.gamma / 5.0

    answers, choices = script(), iter([x.numpy() for x in sent.values() if len(x)])

    def draw(scale, size=None):
        value, wanted = next(answers)
        assert scale == pytest.approx(wanted)
        assert np.shape(value) == (() if size is None else (size,))
        return value

    def choose(accepted, size, replace):
        value = next(choices)
        assert set(value) <= set(accepted)
        assert replace == part.replace
        return value

    def partition(accepted, total, replace):
        assert accepted == [int((passes[n] <= last).sum()) for n in sent]
        assert (total, replace) == (count, part.replace)
        return [len(x) for x in sent.values()]

    module = flare("app_common.filters.svt_privacy")
    monkeypatch.setattr(np.random, "laplace", draw)
    monkeypatch.setattr(np.random, "choice", choose)
    monkeypatch.setattr(module, "_sample_partition_counts", partition)
    theirs = filtered(module.SVTPrivacy(fraction=fraction, noise_var=5.0, replace=replace), update, steps)
    assert next(answers, None) is None
    for name, g in ours.items():
        torch.testing.assert_close(g[0, 0], torch.from_numpy(theirs.data[name]).to(g), rtol=1e-5, atol=1e-12)
    counted = theirs.get_meta_prop("svt_privacy_budget")["epsilon_total"]
    assert counted == pytest.approx(part.spent(200)[0] + part.epsilon)


@pytest.mark.filterwarnings("ignore")
def test_flares_own_draws_send_as_many_values_of_the_same_size():
    """Without replaced draws: shares of sent coordinates, and the mean magnitude of their noise."""
    update = Signal({"a": torch.full((1, 1, 100_000), 0.004)}, local=BESIDE)
    np.random.seed(0)
    theirs = filtered(flare("app_common.filters").SVTPrivacy(gamma=0.01), update, 1).data["a"]
    ours = SparseVector(gamma=0.01)(update, NOW, drawing()).grads["a"][0, 0].numpy()
    assert np.mean(theirs != 0) == pytest.approx(np.mean(ours != 0), abs=0.003)
    assert np.abs(theirs[theirs != 0]).mean() == pytest.approx(np.abs(ours[ours != 0]).mean(), rel=0.03)
