"""NbAFL and priority-based noise: closed forms, slow references, selections, and refusals."""

import dataclasses
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from leakbench.cell import Request, resolve_cell
from leakbench.cell.accounting import cell_epsilon
from leakbench.cell.cell import hand_out
from leakbench.core.errors import InputError
from leakbench.core.part import part
from leakbench.core.recipe import construct
from leakbench.core.rng import generator, generators
from leakbench.core.types import Clock, Local, Network, Signal
from leakbench.data.find import load_dataset
from leakbench.data.recipe import Federation
from leakbench.defense import Defense, FactProbe, facts_at
from leakbench.defense.importance import Central, Importance, Sensitivity, Variance, local_model
from leakbench.defense.nbafl import Calibration, NbaflDownlink, NbaflUplink, clip_weights, downlink_std, uplink_std
from leakbench.defense.priority import PriorityNoise, chosen
from leakbench.federated.simulate import train
from leakbench.models import build, one_hot, parameters
from leakbench.summary.notes import network_notes

CLOCK = Clock(0, 0, rounds=8, local_iterations=1, cohort=5, clients=5, examples_per_client=40)
C_01 = math.sqrt(2 * math.log(125))


def network(name: str = "mlp_256", shape: tuple[int, ...] = (1, 4, 5), classes: int = 4) -> Network:
    model = build(name, shape, classes, generator(0, "model"))
    return Network(model, parameters(model))


def signal(net: Network, lanes: int = 3, shape: tuple[int, ...] = (1, 4, 5), scale: float = 0.05) -> Signal:
    """Return updates of a few clients, with 12 examples each, half of whose inputs are zero."""
    rng = generator(1, "signal")
    grads = {n: scale * torch.randn(lanes, 1, *p.shape, generator=rng) for n, p in net.parameters.items()}
    inputs = torch.rand(lanes, 12, *shape, generator=rng) * (torch.rand(lanes, 12, *shape, generator=rng) < 0.5)
    targets = one_hot(torch.randint(4, (lanes, 12), generator=rng), 4)
    return Signal(grads, local=Local(net, inputs, targets))


def calibration(epsilon: float = 60.0, norm: float = 20.0, **more) -> Calibration:
    return Calibration(norm=norm, epsilon=epsilon, **more)


def priority(importance: Importance, share: float = 0.25, which: str = "least", selected: float = 6.0) -> PriorityNoise:
    return PriorityNoise(importance, share, which, calibration(), selected)


def rngs(lanes: int = 3):
    return generators(0, "noise", [(i,) for i in range(lanes)])


def weights_norm(after: Signal) -> Tensor:
    return torch.stack([w.flatten(1).square().sum(1) for w in local_model(after).values()]).sum(0).sqrt()


def test_the_uplink_noise_is_equation_4():
    """delta .01: c = 3.10751; L = T = 25, C = 20, m = 800, epsilon 60: sigma_U = c 25 (2 20 / 800) / 60."""
    clock = dataclasses.replace(CLOCK, rounds=25, examples_per_client=800)
    assert math.isclose(C_01, 3.10751, abs_tol=1e-5)
    assert calibration().uplink(clock, 60.0) == pytest.approx(C_01 * 25 * 0.05 / 60)
    # FederatedScope's value.
    assert uplink_std(30.0, 10, 2 * 1.0 / 50, 100.0) == pytest.approx(2 * 1.0 * 10 * 30 / (50 * 100))
    assert calibration(exposures=5).uplink(clock, 60.0) == pytest.approx(C_01 * 5 * 0.05 / 60)
    assert calibration(exposures=50).uplink(clock, 60.0) == calibration().uplink(clock, 60.0)
    assert calibration(sensitivity="whole").uplink(clock, 60.0) == pytest.approx(C_01 * 25 * 40 / 60)


def test_the_downlink_noise_is_equation_5():
    """T = 10, L = 3, N = 4: sqrt(100 - 36) = 8 > 0; at N = 16, L sqrt(N) = 12 > T, so none."""
    assert downlink_std(3.0, 3, 2.0, 50.0, rounds=10, clients=4, examples=100) == pytest.approx(
        2 * 3 * 2 * 8 / (100 * 4 * 50)
    )
    assert downlink_std(3.0, 3, 2.0, 50.0, rounds=10, clients=16, examples=100) == 0


@pytest.mark.parametrize("members", [5, 1])
def test_the_downlink_noise_is_on_the_mean(members):
    """If the 5 expected updates arrive or only one is observed: the sum has noise of sigma_D * K_t."""
    clock = dataclasses.replace(CLOCK, rounds=10, clients=9, examples_per_client=1)
    server = NbaflDownlink(calibration(epsilon=100.0, exposures=3))
    before = Signal({"a": torch.zeros(2, members, 40_000)})
    after = server(before, clock, rngs(2))
    expected = 2 * C_01 * 20 * math.sqrt(100 - 81) / (9 * 100)
    assert after.mean(5).grads["a"].std() == pytest.approx(expected, rel=0.02)
    assert after.facts[-1].std == pytest.approx(expected * 5)


def test_weights_are_clipped_by_their_norm_not_updates():
    """The sent weights have norm 20.4 or so: at C = 1 every upload has norm 1 exactly, at C = 1e9 updates are bit-identical."""
    net = network()
    before = signal(net)
    tight = clip_weights(before, 1.0)
    assert weights_norm(tight).tolist() == pytest.approx([1.0] * 3, rel=1e-5)
    loose = clip_weights(before, 1e9)
    assert all(torch.equal(loose.grads[n], g) for n, g in before.grads.items())
    assert [f.norm for f in (*tight.facts, *loose.facts)] == [2.0, 2e9]


@settings(max_examples=20, deadline=None)
@given(st.floats(0.01, 100), st.floats(0, 100))
def test_two_uploads_differ_by_at_most_the_accounted_bound(norm, scale):
    after = clip_weights(signal(network(), scale=scale), norm)
    between = [sum(float((g[0] - g[i]).square().sum()) for g in after.grads.values()) ** 0.5 for i in (1, 2)]
    assert max(between) <= after.facts[-1].norm * (1 + 1e-4)


def test_variance_is_equation_6():
    """The sum over j of the variance of two points, on weights that each client has for itself."""
    net = network()
    before = signal(net)
    name = "1.weight"
    pairs = torch.stack([net.parameters[name].expand(3, -1, -1), local_model(before)[name]])
    torch.testing.assert_close(Variance()(before, 1.0), pairs.var(0, correction=0).sum(1), rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize(
    ("name", "shared"), [("mlp_256", True), ("mlp", True), ("mlp_sigmoid", True), ("mlp_256", False), ("mlp", False)]
)
def test_sensitivity_equals_two_loops(name, shared):
    """For every client and feature: add r to a whole column of the client's weights, count the right predictions again."""
    net, std = network(name), 8.0
    before = signal(net, scale=0.2)
    if not shared:
        own = {n: p + 0.1 * torch.randn(3, *p.shape, generator=generator(5, "own")) for n, p in net.parameters.items()}
        net = Network(net.model, own, shared=False)
        before = dataclasses.replace(before, local=dataclasses.replace(before.local, network=net))
    fast = Sensitivity()(before, std)

    def accuracy(weights, lane):
        logits = torch.func.functional_call(net.model, weights, (before.local.inputs[lane],))
        return (logits.argmax(1) == before.local.targets[lane].argmax(1)).double().mean()

    slow = torch.zeros(3, 20, dtype=torch.float64)
    for lane in range(3):
        weights = {n: w[lane] for n, w in local_model(before).items()}
        for i in range(20):
            first = weights["1.weight"].clone()
            first[:, i] += std * math.sqrt(2 / math.pi)
            slow[lane, i] = (accuracy({**weights, "1.weight": first}, lane) - accuracy(weights, lane)).abs()
    assert (slow > 0).sum() > 5
    torch.testing.assert_close(fast.double(), slow, rtol=0, atol=1e-6)


def test_central_importance_is_equal_for_all_clients_and_highest_in_the_middle():
    net = network(shape=(1, 5, 5))
    found = Central()(signal(net, shape=(1, 5, 5)), 1.0)
    assert found.argmax(1).tolist() == [12, 12, 12]
    assert set(found[:, [0, 4, 20, 24]].flatten().tolist()) == {0, 1, 2, 3}
    assert all(len(set(lane.tolist())) == 25 for lane in found)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 100), st.integers(1, 60), st.integers(1, 4))
def test_exactly_the_floor_of_the_share_is_chosen_and_the_ends_are_disjoint(percent, features, values):
    """For any ties."""
    importance = torch.randint(values, (3, features), generator=generator(features, "importance")).float()
    least, most = (chosen(importance, percent / 100, which, rngs()) for which in ("least", "most"))
    for mask in (least, most):
        assert mask.sum(1).tolist() == [percent * features // 100] * 3
    if percent <= 50:
        assert not (least & most).any()
    for lane in range(3):
        if 0 < percent * features // 100 < features:
            assert importance[lane][least[lane]].max() <= importance[lane][~least[lane]].min()
            assert importance[lane][most[lane]].min() >= importance[lane][~most[lane]].max()


def test_equal_importances_have_a_random_order():
    """Otherwise the first rows of a picture would always be the least important."""
    picked = [
        chosen(torch.zeros(1, 100), 0.1, "least", generators(s, "noise", [(0,)])).nonzero()[:, 1] for s in range(20)
    ]
    assert len({tuple(p.tolist()) for p in picked}) == 20
    assert 30 < torch.cat(picked).float().mean() < 70


@pytest.mark.parametrize("which", ["least", "most"])
def test_each_group_of_weights_gets_its_own_noise(which):
    """10 x the noise at a tenth of epsilon on the columns of the chosen inputs, the base noise on all else, within 2 %."""
    net = network(shape=(1, 20, 20))
    before = signal(net, lanes=4, shape=(1, 20, 20))
    guard = priority(Variance(), which=which)
    added = {n: g - guard(before, CLOCK, None).grads[n] for n, g in guard(before, CLOCK, rngs(4)).grads.items()}
    base = C_01 * 8 * (2 * 20 / 40) / 60
    order = Variance()(before, base).argsort(1)
    picked = order[:, :100] if which == "least" else order[:, 300:]
    mask = torch.zeros(4, 400, dtype=torch.bool).scatter(1, picked, True)[:, None, None].expand_as(added["1.weight"])
    assert added["1.weight"][mask].std() == pytest.approx(10 * base, rel=0.02)
    assert added["1.weight"][~mask].std() == pytest.approx(base, rel=0.02)
    assert torch.cat([added[n].flatten() for n in ("1.bias", "3.weight", "3.bias")]).std() == pytest.approx(
        base, rel=0.03
    )


@pytest.mark.parametrize("share", [0.0, 0.3])
def test_at_equal_epsilons_or_nothing_chosen_it_is_nbafl(share):
    before = signal(network())
    guard = PriorityNoise(Central(), share, "least", calibration(), 60.0 if share else 6.0)
    plain = NbaflUplink(calibration())
    after, expected = guard(before, CLOCK, None), plain(before, CLOCK, None)
    assert all(torch.equal(after.grads[n], g) for n, g in expected.grads.items())
    noisy = guard(before, CLOCK, rngs()).grads["1.weight"] - after.grads["1.weight"]
    assert noisy.std() == pytest.approx(calibration().uplink(CLOCK, 60.0), rel=0.03)


def recipe(*client, server=()) -> Defense:
    return construct(Defense, {"title": "t", "cite": "c", "unit": "client", "client": client, "server": server})


NBAFL = {"norm": 1e9, "epsilon": 1e30}


@pytest.mark.parametrize(
    "client",
    [
        {"nbafl_uplink": {"calibration": NBAFL}},
        *(
            {
                "priority_noise": {
                    "importance": importance,
                    "share": 0.5,
                    "which": "most",
                    "calibration": NBAFL,
                    "epsilon_selected": 1e30,
                }
            }
            for importance in ("variance", "sensitivity", "central")
        ),
    ],
)
def test_without_clip_and_noise_it_is_federated_averaging(client):
    data = load_dataset("digits", None)[2]
    federation = Federation(
        rounds=2, batch=8, examples_per_client=40, clients=6, clients_per_round=3, local_iterations=2
    )
    net = network(shape=data.shape, classes=data.classes)
    partition = federation.partition(data.train_targets, 6, 40, generator(0, "partition"))
    plain, guarded = (
        list(train(net, data, partition, federation, defense, seed=0))[-1].parameters
        for defense in (recipe(), recipe(client, server=[{"nbafl_downlink": {"calibration": NBAFL}}]))
    )
    for name, p in plain.items():
        torch.testing.assert_close(guarded[name], p, rtol=0, atol=1e-7)


def test_an_empty_cohort_uploads_no_clipped_weights():
    """No client clips, so the model is unchanged, although its norm is above C."""
    data = load_dataset("digits", None)[2]
    federation = Federation(
        rounds=6, batch=4, examples_per_client=10, clients=40, clients_per_round=1, local_iterations=1
    )
    defense = dataclasses.replace(
        recipe({"nbafl_uplink": {"calibration": {"norm": 1.0, "epsilon": 1e30}}}), cohorts="poisson"
    )
    net = network(shape=data.shape, classes=data.classes)
    partition = federation.partition(data.train_targets, 40, 10, generator(0, "partition"))
    before, taken, empty = net.parameters, torch.zeros(40), 0
    for now in train(net, data, partition, federation, defense, seed=3):
        if torch.equal(now.counts.rounds.float(), taken):
            empty += 1
            assert all(torch.equal(before[n], p) for n, p in now.parameters.items())
        before, taken = now.parameters, now.counts.rounds.float()
    assert empty > 0


def test_the_deterministic_part_is_differentiable_and_ranks_nothing():
    @part
    class Forbidden:
        secret: str = ""

        def __call__(self, signal, std):
            raise AssertionError("an attacker's guess needs no ranking")

    before = signal(network())
    leaf = before.grads["1.weight"].clone().requires_grad_()
    asked = dataclasses.replace(before, grads={**before.grads, "1.weight": leaf})
    guard = PriorityNoise(Forbidden(), 0.5, "least", calibration(norm=2.0), 6.0)
    guard(asked, CLOCK, None).grads["3.weight"].sum().backward()
    assert leaf.grad.isfinite().all()
    assert leaf.grad.abs().max() > 0


def test_the_facts_are_the_clip_the_mask_and_the_smallest_noise():
    federation = Federation(rounds=8, batch=2, examples_per_client=40, clients=5, clients_per_round=5)
    probe = FactProbe(network(), (1, 4, 5), 4, federation)
    noise = C_01 * 8 * (2 * 20 / 40) / 60
    for importance in ("variance", "sensitivity", "central"):
        fields = {"importance": importance, "share": 0.1, "which": "least", "epsilon_selected": 6.0}
        defense = recipe({"priority_noise": {**fields, "calibration": {"norm": 20.0, "epsilon": 60.0}}})
        found = facts_at(defense, probe, defense.clock(federation, 0))["client"]
        kinds = [f.kind for f in found]
        assert kinds == (["clip", "noise"] if importance == "central" else ["clip", "other", "noise"])
        assert found[0].norm == 40
        assert found[-1].each
        assert found[-1].std == pytest.approx(noise)


@pytest.mark.parametrize("name", ["nbafl", "priority_public_valid"])
def test_the_valid_epsilon_uses_twice_the_clip(name):
    """sigma / (2 C) = c L / (m epsilon), or c L / epsilon if the whole 2 C is used."""
    cell = resolve_cell(Request(defense=name), None)
    found = cell_epsilon(cell.defense, cell.data, cell.settings, hand_out(cell), None)
    f = cell.settings.federation
    expected = C_01 * f.rounds / (60 * f.examples_per_client if name == "nbafl" else 10)
    assert found.by_tap["type-1"].sigma_effective == pytest.approx(expected)
    assert found.valid is not None


@pytest.mark.parametrize("name", ["priority_variance", "priority_sensitivity"])
@pytest.mark.parametrize("dataset", ["faces", "digits", "cancer"])
def test_a_private_mask_has_no_epsilon_and_the_recipe_has_its_model(name, dataset):
    cell = resolve_cell(Request(defense=name, dataset=dataset), None)
    assert (cell.settings.model, cell.settings.leak_model) == ("mlp_256", "mlp_sigmoid")
    found = cell_epsilon(cell.defense, cell.data, cell.settings, hand_out(cell), None)
    assert found.valid is None
    assert found.reason.startswith("none: a mask computed from private data")
    assert resolve_cell(Request(defense=name, dataset=dataset, model="mlp"), None).settings.model == "mlp"


@pytest.mark.parametrize("options", [{"model": "cnn"}, {"leak_model": "lenet_cpl"}])
def test_a_convolution_has_no_input_features(options):
    with pytest.raises(InputError, match=r"first layer .* expected a fully connected one .*--model mlp_256") as raised:
        resolve_cell(Request(defense="priority_variance", dataset="faces", **options), None)
    assert "\n" not in str(raised.value)


def test_sensitivity_names_the_supported_models():
    class Other(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(20, 4)

    model = Other()
    before = signal(Network(model, parameters(model)))
    with pytest.raises(InputError, match=r"takes a torch\.nn\.Sequential, got Other"):
        Sensitivity()(before, 1.0)


GOOD = {
    "importance": "variance",
    "share": 0.1,
    "which": "least",
    "calibration": {"norm": 20.0, "epsilon": 60.0},
    "epsilon_selected": 6.0,
}


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"epsilon_selected": 61.0}, "epsilon_selected: got 61.0, expected at most epsilon, 60.0"),
        ({"share": 10.0}, "share"),
        ({"which": "lest"}, "which"),
        ({"importance": "varience"}, "unknown part 'varience'; did you mean 'variance'"),
        (
            {"calibration": {"norm": 20.0, "epsilon": 60.0, "constant": 3.1}},
            r"constant: got 3.1, expected at least .*3.1075",
        ),
        ({"calibration": {"norm": 20.0, "epsilon": 60.0, "delta": 1.0}}, "delta"),
        ({"calibration": {"norm": -1.0, "epsilon": 60.0}}, "norm"),
        ({"calibration": {"norm": 20.0, "epsilon": 60.0, "exposures": 0}}, "exposures"),
        (
            {"calibration": {"norm": 20.0, "epsilon": 60.0, "epsilom": 0}},
            "unknown field 'epsilom'; did you mean 'epsilon'",
        ),
    ],
)
def test_wrong_numbers_are_refused_in_one_line(wrong, message):
    assert recipe({"priority_noise": GOOD}).client
    with pytest.raises(InputError, match=message) as raised:
        recipe({"priority_noise": {**GOOD, **wrong}})
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("station", "step"),
    [
        ("example", "priority_noise"),
        ("batch", "nbafl_uplink"),
        ("server", "nbafl_uplink"),
        ("client", "nbafl_downlink"),
    ],
)
def test_a_transform_at_the_wrong_station_is_refused(station, step):
    fields = GOOD if step == "priority_noise" else {"calibration": GOOD["calibration"]}
    with pytest.raises(InputError, match=f"{station}: {step} is at the {station} station, expected at the"):
        construct(Defense, {"title": "t", "cite": "c", "unit": "client", station: [{step: fields}]})


def test_ranking_and_clipping_need_the_data_of_a_client():
    bare = dataclasses.replace(signal(network()), local=None)
    with pytest.raises(InputError, match="only a client can rank"):
        priority(Variance())(bare, CLOCK, None)
    with pytest.raises(InputError, match="only a client can clip"):
        NbaflUplink(calibration())(bare, CLOCK, None)


def test_the_network_of_the_paper_has_203530_parameters():
    assert sum(p.numel() for p in network(shape=(1, 28, 28), classes=10).parameters.values()) == 203_530


def test_the_summary_names_the_used_networks():
    asked = resolve_cell(Request(defense="priority_variance", dataset="digits", model="mlp"), None)
    assert network_notes(asked) == {
        "model": "mlp is trained, not the defense's mlp_256",
        "leak_model": "mlp_sigmoid leaks, for which the defense's recipe asks",
    }
    assert network_notes(resolve_cell(Request(defense="nbafl", dataset="digits"), None)) == {}
