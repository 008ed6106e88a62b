"""A client that refuses suspicious models: which, what it leaves unchanged, the effect on a guarantee, and on the attacker."""

import dataclasses
import json

import pytest
import torch
from command_line import called
from hypothesis import given, settings
from hypothesis import strategies as st
from probes import facts_of
from torch import Tensor

from leakbench.attack.servers.first_layer import QuantileRows
from leakbench.attack.servers.imprint import Imprint
from leakbench.attack.servers.loki import Loki
from leakbench.core.errors import InputError
from leakbench.core.recipe import construct
from leakbench.core.rng import generator
from leakbench.core.types import Clock, Local, Network, Signal
from leakbench.data.recipe import Federation
from leakbench.defense import Defense
from leakbench.defense.clip import ClipWhole
from leakbench.defense.guess import Chooses, on_a_guess
from leakbench.defense.noise import GaussianNoise
from leakbench.defense.refuse import RefuseConspicuous, Refused
from leakbench.defense.transform import Stations
from leakbench.experiment.conspicuous import seen_of
from leakbench.federated.client import Examples, example_signal
from leakbench.federated.leakage import leak
from leakbench.federated.view import Knowledge, Public, View
from leakbench.models import build, one_hot, parameters
from leakbench.privacy.calibration import calibrated

SHAPE, CLASSES, CLOCK = (1, 12, 12), 4, Clock(0, 0, 1, 1)
FEDERATION = Federation(rounds=2, batch=5, examples_per_client=20, clients=30, clients_per_round=10, local_iterations=4)
PUBLIC = Public(torch.rand(400, *SHAPE, generator=generator(0, "p")), torch.zeros(400, dtype=torch.int64))


def honest(model: str = "mlp", seed: int = 0) -> Network:
    built = build(model, SHAPE, CLASSES, generator(seed, "m"))
    return Network(built, parameters(built))


def imprinted(**fields: object) -> Network:
    return construct(Imprint, {"bins": 16, **fields})(honest("cnn"), PUBLIC, Knowledge(), generator(0, "server"))[0]


def examples(lanes: int, members: int, seed: int = 1) -> tuple[Tensor, Tensor]:
    x = torch.rand(lanes, members, *SHAPE, generator=generator(seed, "x"))
    return x, one_hot(torch.arange(members) % CLASSES, CLASSES).expand(lanes, -1, -1)


def signal(network: Network, lanes: int = 1, members: int = 8, weights: Tensor | None = None, seed: int = 1) -> Signal:
    x, y = examples(lanes, members, seed)
    w = x.new_ones(lanes, members) if weights is None else weights
    batch = Examples(x[:, None], y[:, None], w[:, None], members)
    return dataclasses.replace(example_signal(network, batch, 0), local=Local(network, *batch.at(0)))


def refused(part: RefuseConspicuous, before: Signal) -> list[bool]:
    """Say for each lane whether it is zero; other lanes must be bit-identical to before."""
    after = part(before, CLOCK, None)
    found = []
    for lane in range(before.lanes):
        zero = all(not g[lane].any() for g in after.grads.values())
        assert zero or all(torch.equal(after.grads[n][lane], g[lane]) for n, g in before.grads.items())
        found.append(zero)
    return found


@pytest.mark.parametrize("model", ["cnn", "lenet_cpl", "mlp", "mlp_1000", "mlp_sigmoid"])
def test_an_honest_model_is_not_refused(model: str) -> None:
    for members in (1, 8):
        assert refused(RefuseConspicuous(), signal(honest(model), 2, members)) == [False, False]


@pytest.mark.parametrize("form", ["sparse", "cumulative"])
@pytest.mark.parametrize("members", [1, 8])
def test_an_imprint_is_refused_by_its_rows(form: str, members: int) -> None:
    """Both forms, in every lane; without the check of rows the sparse one is detected by activations, only for a large batch."""
    before = signal(imprinted(form=form), 2, members)
    assert refused(RefuseConspicuous(), before) == [True, True]
    blind = RefuseConspicuous(rows_alike=None, d_snr=None, lit_alone=0.75)
    assert refused(blind, before) == [form == "sparse" and members == 8] * 2
    assert refused(RefuseConspicuous(rows_alike=None, d_snr=None, lit_alone=None), before) == [False, False]


def test_each_lane_is_judged_by_its_own_network_and_batch() -> None:
    """Two clients with parameters of their own, as after a local step: the rows of the second are all the same."""
    plain = honest()
    own = {n: torch.stack([p, p]) for n, p in plain.parameters.items()}
    own["1.weight"][1] = own["1.weight"][1, :1]
    lying = dataclasses.replace(plain, parameters=own, shared=False)
    assert refused(RefuseConspicuous(), signal(lying, 2)) == [False, True]
    loud = signal(plain, 3)
    louder = {n: g.clone() for n, g in loud.grads.items()}
    for g in louder.values():
        g[1, 0] *= 1e4
    assert refused(RefuseConspicuous(lit_alone=None), dataclasses.replace(loud, grads=louder)) == [False, True, False]


@settings(max_examples=15, deadline=None)
@given(st.integers(8, 12), st.integers(0, 50), st.sampled_from(["rows_alike", "d_snr", "lit_alone"]))
def test_a_threshold_applies_to_its_measure(members: int, seed: int, name: str) -> None:
    """Just below the batch's statistic it is refused, just above it is not, for any values of the other two."""
    before = signal(honest(), members=members, seed=seed)
    assert before.local is not None
    value = seen_of(honest(), before.local.inputs[0], before.local.targets[0].argmax(1))[name]
    nothing = dict.fromkeys(("rows_alike", "d_snr", "lit_alone"))
    for factor, expected in ((0.99, True), (1.01, False)):
        part = RefuseConspicuous(**{**nothing, name: value * factor})
        assert refused(part, before) == [expected]


def test_padding_is_not_an_example() -> None:
    """Seven examples and one of weight zero are fewer than eight; with `least` seven they are judged, as without the padding."""
    strict = RefuseConspicuous(d_snr=1e-3)
    weights = torch.ones(2, 8)
    weights[0, -1] = 0
    before = signal(honest(), 2, weights=weights)
    assert refused(strict, before) == [False, True]
    assert refused(dataclasses.replace(strict, least=7), before) == [True, True]
    nobody = signal(honest(), 1, 8, weights=torch.zeros(1, 8))
    part = RefuseConspicuous(least=1, d_snr=1e-3)
    assert all(not g.any() for g in part(nobody, CLOCK, None).grads.values())


def test_nan_is_not_sent_by_a_refusing_client() -> None:
    """NaN does not pass as zero times NaN; if nothing can be judged by it, it stays, so that a failure is visible."""
    before = signal(imprinted())
    broken = {n: torch.full_like(g, torch.nan) for n, g in before.grads.items()}
    after = RefuseConspicuous()(dataclasses.replace(before, grads=broken), CLOCK, None)
    assert all(not g.any() for g in after.grads.values())
    plain = signal(honest())
    broken = {n: torch.full_like(g, torch.nan) for n, g in plain.grads.items()}
    after = RefuseConspicuous()(dataclasses.replace(plain, grads=broken), CLOCK, None)
    assert all(g.isnan().all() for g in after.grads.values())


def test_a_refusal_must_be_the_first_part_at_the_example_station() -> None:
    before, part = signal(honest()), RefuseConspicuous()
    with pytest.raises(InputError, match="put it at the example station"):
        part(before.mean(), CLOCK, None)
    with pytest.raises(InputError, match="put it at the example station"):
        part(dataclasses.replace(before, local=None), CLOCK, None)
    with pytest.raises(InputError, match="put it first"):
        part(ClipWhole(1.0)(before, CLOCK, None), CLOCK, None)
    recipe = {"title": "t", "cite": "c", "unit": "example", "claim": {"none": {"reason": "r"}}}
    for station in ("batch", "client", "server"):
        with pytest.raises(InputError, match="expected at the example station"):
            construct(Defense, {**recipe, station: ["refuse_conspicuous"]})


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"rows_alike": 1.5}, "rows_alike: "),
        ({"lit_alone": -0.1}, "lit_alone: "),
        ({"d_snr": 0.0}, "d_snr: "),
        ({"d_snr": float("nan")}, "d_snr: "),
        ({"least": 0}, "least: "),
        ({"d_srn": 1.0}, "unknown field 'd_srn'; did you mean 'd_snr'?"),
    ],
)
def test_a_wrong_field_is_refused_in_one_line(fields: dict[str, float], message: str) -> None:
    with pytest.raises(InputError) as error:
        construct(RefuseConspicuous, fields)
    assert str(error.value).startswith(message)
    assert "\n" not in str(error.value)


def ledger(part: RefuseConspicuous, unit: str = "example") -> tuple[int, str]:
    """Return how many noises the ledger counts after a refusal, a clip and noise of the unit, or why none."""
    bounded = (ClipWhole(4.0), GaussianNoise(1.0, "each"))
    steps = {"example": (part, *bounded)} if unit == "example" else {"example": (part,), "client": bounded}
    noises, why = calibrated(
        facts_of(Defense(title="t", cite="c", unit=unit, **steps), FEDERATION), unit, FEDERATION.batch
    )
    return len(noises), why


def test_a_refusal_by_the_batch_breaks_an_examples_guarantee_and_no_clients() -> None:
    """One example can silence the others of its batch despite any clip; a client's own update stays bounded."""
    found, why = ledger(RefuseConspicuous())
    assert found == 0
    assert "one example can decide whether all others are sent" in why
    assert ledger(RefuseConspicuous(lit_alone=None))[0] == 0
    assert ledger(RefuseConspicuous(), "client") == (1, "")


def test_a_refusal_by_the_weights_alone_reveals_no_data() -> None:
    assert ledger(RefuseConspicuous(d_snr=None, lit_alone=None)) == (1, "")


def view(network: Network, part: RefuseConspicuous, x: Tensor, y: Tensor) -> View:
    stations = Stations(example=(part,))
    update = leak("type-1", network, x[:, None, None], y[:, None, None], 0.1, stations, CLOCK, None)
    told = Knowledge(defense=True)
    return View("type-1", network, update, x.shape[1], SHAPE, CLASSES, 0.1, knowledge=told, stations=stations)


def test_a_guess_is_not_refused_if_the_update_was_sent() -> None:
    """The victims' batches pass; a guess that would be refused still shows its gradient, with derivatives."""
    (x, y), network = examples(2, 8), honest()
    part = RefuseConspicuous(rows_alike=None, lit_alone=None, d_snr=1.5)
    seen = view(network, part, x, y)
    assert isinstance(part, Chooses)
    assert all(u.any() for u in seen.update.values())
    one_sided = x.clone()
    one_sided[:, 1:] *= 0
    labels = one_hot(torch.zeros(2, 8, dtype=torch.int64), CLASSES)
    labels[:, 1:] = torch.softmax(
        network.model(torch.zeros(1, *SHAPE)), 1
    ).detach()  # Examples whose gradients are zero.
    assert all(not u.any() for u in seen.respond(one_sided, labels).values())
    leaf = one_sided.requires_grad_()
    guess = seen.respond(leaf, labels, by_what_leaked=True)
    plain = dataclasses.replace(seen, stations=Stations()).respond(leaf, labels)
    for name, g in guess.items():
        torch.testing.assert_close(g, plain[name], rtol=1e-4, atol=1e-7)
    assert torch.autograd.grad(sum(g.square().sum() for g in guess.values()), leaf)[0].any()


def test_a_guess_of_a_refused_update_shows_nothing() -> None:
    """Lane by lane: an update of zeros shows nothing of the examples, and neither does a guess."""
    seen = {"a": torch.tensor([[0.0, 0.0], [0.0, 2.0]]), "b": torch.zeros(2, 3)}
    stations = Stations(example=(RefuseConspicuous(),))
    (guessed,) = on_a_guess(stations, seen).example
    assert isinstance(guessed, Refused)
    assert guessed.nothing.tolist() == [True, False]
    after = guessed(Signal({"a": torch.ones(2, 4, 2), "b": torch.ones(2, 4, 3)}), CLOCK, None)
    assert [float(g[0].sum()) for g in after.grads.values()] == [0.0, 0.0]
    assert [float(g[1].sum()) for g in after.grads.values()] == [8.0, 12.0]
    lied = view(imprinted(), RefuseConspicuous(), *examples(2, 8))
    again = lied.respond(*examples(2, 8, seed=5), by_what_leaked=True)
    assert all(not u.any() and not again[n].any() for n, u in lied.update.items())


def test_rows_with_quantile_biases_are_detected_only_by_activations() -> None:
    """Their weights are inconspicuous; about 1 / e of the active rows, more in a small batch, are activated by only one example."""
    network = QuantileRows()(honest("mlp_1000"), PUBLIC, Knowledge(examples=8), generator(0, "server"))[0]
    before = signal(network)
    assert refused(RefuseConspicuous(lit_alone=None), before) == [False]
    assert refused(RefuseConspicuous(lit_alone=0.4), before) == [True]


@pytest.mark.slow
@pytest.mark.parametrize("knows", ["oblivious", "defense"])
def test_a_refused_imprint_reconstructs_nothing_from_the_command_line(
    monkeypatch, capsys, tmp_path, knows: str
) -> None:
    asked = "--dataset cancer --attack imprint --leak-model mlp --leak-batch 8 --victims 3 --train-rounds 1 --clients 4"
    asked += f" --clients-per-round 2 --local-iterations 2 --taps type-2,type-1 --knows {knows} --quiet --json"
    found = {}
    for defense in ("none", "refuse_conspicuous"):
        folder = str(tmp_path / defense)
        code, out, err = called(monkeypatch, capsys, "run", "--defense", defense, *asked.split(), "--out", folder)
        assert code == 0, err
        found[defense] = json.loads(out)
    assert found["none"]["taps"]["type-1"]["asr"] > 0.5
    for tap in ("type-2", "type-1"):
        assert found["refuse_conspicuous"]["taps"][tap]["asr"] == 0
        assert found["refuse_conspicuous"]["taps"][tap]["precision"] is None
    epsilon = found["refuse_conspicuous"]["epsilon"]
    assert epsilon["valid"] is None
    assert epsilon["reason"].startswith("none: ")
    assert found["refuse_conspicuous"]["conspicuous"]["rows_alike"]["value"] == pytest.approx(1, abs=1e-3)


def test_loki_is_refused_like_the_imprint() -> None:
    """With one client they are the same function, and a client sees the same for both."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(16, 3)).eval()
    network = Network(model, parameters(model))
    public = Public(torch.rand(200, 1, 4, 4), torch.zeros(200, dtype=torch.int64))
    x, y = torch.rand(8, 1, 4, 4), torch.zeros(8, dtype=torch.int64)
    seen = [seen_of(server(network, public, Knowledge(), torch.Generator())[0], x, y) for server in (Imprint(), Loki())]
    assert seen[0] == pytest.approx(seen[1])
    assert seen[0]["rows_alike"] == pytest.approx(1.0)
    several = Loki()(network, public, Knowledge(clients=3), torch.Generator())[0].of_client(2)
    assert seen_of(several, x, y)["rows_alike"] == pytest.approx(1.0)
