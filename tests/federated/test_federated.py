"""The vectorised federation equals plain loops; its sampling; what every leakage point shows."""

import dataclasses
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from leakbench.core.leakage_points import TAPS
from leakbench.core.recipe import names, resolve
from leakbench.core.rng import generator, generators
from leakbench.core.task import Head, Heads, with_task
from leakbench.core.types import Clock, Network, Parameters, Signal
from leakbench.data.find import load_dataset
from leakbench.data.recipe import Federation
from leakbench.defense import Defense
from leakbench.defense.clip import ClipWhole
from leakbench.defense.noise import GaussianNoise
from leakbench.defense.prune import PruneThresholdReleased
from leakbench.defense.sensitivity import L2Max
from leakbench.defense.transform import Stations, stations_before
from leakbench.federated import simulate
from leakbench.federated.client import Examples, example_signal, mean_update
from leakbench.federated.leakage import leak
from leakbench.federated.sampling import draw_batches, draw_clients
from leakbench.federated.simulate import Counts, Round, accuracy, counts_in, from_tensors, to_tensors, train
from leakbench.federated.view import View
from leakbench.models import build, one_hot, parameters

CLOCK = Clock(0, 0, 1, 1)
UNDEFENDED = Defense(title="none", cite="none", unit="example")


def network(name: str = "cnn", shape: tuple[int, ...] = (1, 12, 12), classes: int = 4) -> Network:
    model = build(name, shape, classes, generator(0, "model"))
    return Network(model, parameters(model))


def data(
    lanes: int, steps: int, batch: int, shape: tuple[int, ...] = (1, 12, 12), classes: int = 4
) -> tuple[Tensor, Tensor]:
    rng = generator(1, "data")
    inputs = torch.rand(lanes, steps, batch, *shape, generator=rng)
    return inputs, one_hot(torch.randint(classes, (lanes, steps, batch), generator=rng), classes)


def plain_gradient(net: Network, weights: Parameters, inputs: Tensor, targets: Tensor) -> Parameters:
    """Autograd, one batch, nothing vectorised."""
    held = {n: w.clone().requires_grad_() for n, w in weights.items()}
    logits = torch.func.functional_call(net.model, held, (inputs,))
    loss = nn.functional.cross_entropy(logits, targets)
    return dict(zip(held, torch.autograd.grad(loss, list(held.values())), strict=True))


def test_every_example_gets_its_own_gradient() -> None:
    """Lanes x members equal one backward pass for each example."""
    net, (x, y) = network(), data(2, 1, 3)
    signal = example_signal(net, Examples(x, y, torch.ones(2, 1, 3), 3), 0)
    for lane in range(2):
        for member in range(3):
            plain = plain_gradient(
                net, net.parameters, x[lane, 0, member : member + 1], y[lane, 0, member : member + 1]
            )
            for name, g in plain.items():
                torch.testing.assert_close(signal.grads[name][lane, member], g, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("per_example", [False, True])
def test_local_training_is_plain_sgd(per_example: bool) -> None:
    """Three local iterations of two clients equal a loop of SGD steps, with and without per-example gradients (infinite clip)."""
    net, (x, y) = network(), data(2, 3, 4)
    defense = Stations(example=(ClipWhole(1e9), GaussianNoise(0.0, "each"))) if per_example else Stations()
    rngs = generators(0, "noise", [(0,), (1,)])
    mean = mean_update(net, Examples(x, y, torch.ones(2, 3, 4), 4), 0.1, defense, CLOCK, rngs)
    for lane in range(2):
        weights = dict(net.parameters)
        for step in range(3):
            g = plain_gradient(net, weights, x[lane, step], y[lane, step])
            weights = {n: w - 0.1 * g[n] for n, w in weights.items()}
        for name, w in weights.items():
            torch.testing.assert_close(net.parameters[name] - 0.3 * mean.grads[name][lane, 0], w, rtol=1e-4, atol=1e-6)


def test_padding_changes_nothing() -> None:
    """An example of weight 0 changes nothing, not even through its noise."""
    net, (x, y) = network(), data(1, 1, 3)
    defense = Stations(example=(ClipWhole(1.0), GaussianNoise(1.0, "each")))

    def update(inputs: Tensor, weights: Tensor) -> Parameters:
        rngs = generators(0, "noise", [(0,)])
        return mean_update(net, Examples(inputs, y, weights, 2), 0.1, defense, CLOCK, rngs).grads

    weights = torch.tensor([[[1.0, 1.0, 0.0]]])
    other = x.clone()
    other[0, 0, 2] = 0.5
    for a, b in zip(update(x, weights).values(), update(other, weights).values(), strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("real", [0, 1, 2, 3])
def test_noise_of_padding_does_not_enter_the_sum(real: int) -> None:
    """A Poisson batch padded to 3, expected 2: each real example adds noise, on the mean std / 2 * sqrt(real)."""
    net, (x, y) = network(), data(40, 1, 3)
    weights = (torch.arange(3) < real).float().expand(40, 1, 3)
    noise = GaussianNoise(1.0, "each")

    def update(rngs: object) -> Tensor:
        stations = Stations(example=(ClipWhole(1.0), noise))
        grads = mean_update(net, Examples(x, y, weights, 2), 0.1, stations, CLOCK, rngs).grads  # type: ignore[arg-type]
        return torch.cat([g.flatten(1) for g in grads.values()], 1)

    drawn = update(generators(0, "noise", [(k,) for k in range(40)])) - update(None)
    assert float(drawn.std()) == pytest.approx(math.sqrt(real) / 2, rel=0.02, abs=1e-9)


def test_an_example_of_weight_zero_has_no_gradient() -> None:
    """A scale taken from the batch therefore ignores padding; padding at the end of all lanes is not computed at all."""
    net, (x, y) = network(), data(1, 1, 3)
    grads = example_signal(net, Examples(x, y, torch.tensor([[[1.0, 0.0, 1.0]]]), 2), 0).grads
    assert all(float(g[:, 1].abs().max()) == 0 for g in grads.values())
    assert all(float(g[:, ::2].abs().amax(tuple(range(2, g.dim()))).min()) > 0 for g in grads.values())
    short = example_signal(net, Examples(x, y, torch.tensor([[[1.0, 1.0, 0.0]]]), 2), 0).grads
    assert all(g.shape[1] == 2 for g in short.values())
    assert all(torch.allclose(short[n][:, 0], g[:, 0]) for n, g in grads.items())


def test_batches_are_drawn_as_they_are_named() -> None:
    """fixed: B distinct positions in each batch; split: each position once a pass; poisson: about B, padding marked."""
    rngs = generators(0, "batches", [(i,) for i in range(3)])
    fixed = draw_batches("fixed", 20, 50, 5, rngs).positions
    assert fixed.shape == (3, 50, 5)
    assert all(len(set(batch.tolist())) == 5 for batch in fixed.flatten(0, 1))
    split = draw_batches("split", 20, 4, 5, rngs).positions
    assert all(sorted(lane.flatten().tolist()) == list(range(20)) for lane in split)
    poisson = draw_batches("poisson", 20, 400, 5, rngs)
    assert float(poisson.weights.sum(2).mean()) == pytest.approx(5, abs=0.3)
    assert float(poisson.weights.sum(2).var()) == pytest.approx(20 * 0.25 * 0.75, rel=0.2)
    drawn = [p[w > 0].tolist() for p, w in zip(poisson.positions[0], poisson.weights[0], strict=True)]
    assert all(len(set(batch)) == len(batch) for batch in drawn)


def test_clients_are_drawn_as_they_are_named() -> None:
    """fixed: exactly K_t distinct; poisson: K_t on average."""
    fixed = draw_clients(100, 10, "fixed", 0, 0)
    assert len(fixed) == len(set(fixed.tolist())) == 10
    sizes = [len(draw_clients(100, 10, "poisson", 0, i)) for i in range(300)]
    assert sum(sizes) / 300 == pytest.approx(10, abs=0.6)
    assert len(set(sizes)) > 5


def run(defense: Defense, rounds: int = 2, seed: int = 0, start_after: int | None = None) -> list[Parameters]:
    """Train on the embedded digits; with `start_after`, resume from a checkpoint of that round."""
    _, recipe, digits = load_dataset("digits")
    model = build("mlp", digits.shape, digits.classes, generator(0, "model"))
    partition = recipe.federation.partition(digits.train_targets, 6, 20, generator(0, "partition"))
    federation = Federation(
        rounds, batch=4, examples_per_client=20, clients=6, clients_per_round=3, local_iterations=3, learning_rate=0.1
    )

    def trained(done: object = None) -> list:  # type: ignore[type-arg]
        return list(train(Network(model, parameters(model)), digits, partition, federation, defense, seed, done))  # type: ignore[arg-type]

    states = trained()
    if start_after is not None:
        held = states[start_after]
        row = {
            f.name: getattr(held, f.name) for f in dataclasses.fields(held) if f.name not in ("parameters", "counts")
        }
        states = [*states[: start_after + 1], *trained(from_tensors(to_tensors(held), row))]
    assert [s.round for s in states] == list(range(rounds))
    return [s.parameters for s in states]


def far(a: Parameters, b: Parameters) -> float:
    return max(float((a[n] - b[n]).abs().max()) for n in a)


def test_rounds_are_plain_fedavg_and_the_ledger_counts_their_clients() -> None:
    """Two rounds, one client after the other: sums over Poisson batches by B, over the cohort by K_t.

    The ledger counts the drawn clients.
    """
    _, recipe, digits = load_dataset("digits")
    model = build("mlp", digits.shape, digits.classes, generator(0, "model"))
    net = Network(model, parameters(model))
    handed = recipe.federation.partition(digits.train_targets, 6, 20, generator(0, "partition"))
    federation = Federation(
        2, batch=4, examples_per_client=20, clients=6, clients_per_round=3, local_iterations=3, learning_rate=0.1
    )
    defense = dataclasses.replace(UNDEFENDED, batches="poisson")
    states = list(train(net, digits, handed, federation, defense, 0))
    whole = net.parameters
    uses, updates = (torch.zeros(len(digits.train_targets), dtype=torch.int64) for _ in range(2))
    rounds = torch.zeros(6, dtype=torch.int64)
    for t in range(2):
        moved = {n: torch.zeros_like(w) for n, w in whole.items()}
        for client in draw_clients(6, 3, "fixed", 0, t).tolist():
            rounds[client] += 1
            updates[handed.indices[client]] += 1
            weights = whole
            drawn = draw_batches("poisson", 20, 3, 4, generators(0, "batches", [(t, client)]))
            for positions, real in zip(drawn.positions[0], drawn.weights[0] > 0, strict=True):
                chosen = handed.indices[client, positions[real]]
                uses[chosen] += 1
                if len(chosen):
                    targets = one_hot(digits.train_targets[chosen], digits.classes)
                    mean = plain_gradient(net, weights, digits.train_inputs[chosen], targets)
                    weights = {n: w - 0.1 * mean[n] * len(chosen) / 4 for n, w in weights.items()}
            moved = {n: m + (weights[n] - whole[n]) / 3 for n, m in moved.items()}
        whole = {n: w + moved[n] for n, w in whole.items()}
        assert far(states[t].parameters, whole) < 1e-5
    counts = states[-1].counts
    assert torch.equal(counts.uses, uses)
    assert torch.equal(counts.updates, updates)
    assert torch.equal(counts.rounds, rounds)


@pytest.mark.parametrize("station", ["example", "batch", "client", "server"])
def test_infinite_clip_and_zero_noise_are_fedavg(station: str) -> None:
    """At every station, the rounds equal those without a defense."""
    steps = (ClipWhole(1e9), GaussianNoise(0.0, "sum"))
    assert far(run(UNDEFENDED)[-1], run(dataclasses.replace(UNDEFENDED, **{station: steps}))[-1]) < 1e-5  # type: ignore[arg-type]


@pytest.mark.parametrize("station", ["example", "batch", "client", "server"])
def test_noise_reaches_the_model_and_moves_no_data(station: str) -> None:
    """Tiny noise at any station moves the model a little; if it changed the draws of clients or batches, it would move a lot."""
    steps = (ClipWhole(1e3), GaussianNoise(1e-7, "each"))
    moved = far(run(UNDEFENDED)[-1], run(dataclasses.replace(UNDEFENDED, **{station: steps}))[-1])  # type: ignore[arg-type]
    assert 1e-6 < moved < 1e-2


def test_the_seed_determines_the_rounds() -> None:
    """Bit-identical."""
    defense = resolve("defenses", Defense, "fed_cdp")[1]
    assert far(run(defense)[-1], run(defense)[-1]) == 0
    assert far(run(defense)[-1], run(defense, seed=1)[-1]) > 0


def test_a_checkpoint_resumes_to_the_same_rounds() -> None:
    """Training resumed from a checkpoint after the first round gives bit-identical later rounds."""
    defense = resolve("defenses", Defense, "fed_sdp_server")[1]
    whole, resumed = run(defense, rounds=3), run(defense, rounds=3, start_after=0)
    assert all(far(a, b) == 0 for a, b in zip(whole, resumed, strict=True))


def test_server_noise_on_the_sum_is_divided_by_the_cohort() -> None:
    """sigma C on the sum of K_t = 3 updates: noise of sigma C / 3 is added to the global model."""
    loud = dataclasses.replace(UNDEFENDED, server=(ClipWhole(1e-6), GaussianNoise(3e6, "sum")))
    moved = run(loud, rounds=1)[0]
    quiet = run(dataclasses.replace(loud, server=loud.server[:1]), rounds=1)[0]
    noise = torch.cat([(moved[n] - quiet[n]).flatten() for n in moved])
    assert float(noise.std()) == pytest.approx(1.0, rel=0.05)


@pytest.mark.parametrize("chunk", [1, 2])
def test_rounds_do_not_depend_on_how_many_clients_run_side_by_side(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each client has its own noise, and the largest of all their sensitivities scales the server's, in any chunk."""
    client = (ClipWhole(1.0), L2Max(), GaussianNoise(0.1, "each"))
    defense = dataclasses.replace(UNDEFENDED, client=client, server=(GaussianNoise(0.1, "sum"),))
    together = run(defense)
    monkeypatch.setattr("leakbench.federated.simulate.lanes_per_chunk", lambda *_: chunk)
    assert far(together[-1], run(defense)[-1]) < 1e-5


def test_clients_of_a_network_whose_own_code_runs_share_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its parameters are swapped during a run."""
    threaded: list[bool] = []
    plain = simulate.side_by_side
    monkeypatch.setattr(simulate, "side_by_side", lambda work: threaded.append(True) or plain(work))
    run(UNDEFENDED, rounds=1)
    assert threaded == [True]
    monkeypatch.setattr(simulate, "runs_apart", lambda *_: False)
    run(UNDEFENDED, rounds=1)
    assert threaded == [True]


def test_a_client_draws_its_noise_from_a_separate_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    """It differs, for example, from the stream of the batches."""
    seen: list[int] = []
    plain = simulate.client_update

    def watched(*given: Any) -> Signal:
        seen.extend(rng.initial_seed() for rng in given[-1])
        return plain(*given)

    monkeypatch.setattr(simulate, "client_update", watched)
    drawn: list[tuple[str, int]] = []
    made = simulate.generators

    def generated(seed: int, purpose: str, lanes: Any) -> Any:
        found = made(seed, purpose, lanes)
        drawn.extend((purpose, rng.initial_seed()) for rng in found)
        return found

    monkeypatch.setattr(simulate, "generators", generated)
    run(dataclasses.replace(UNDEFENDED, client=(ClipWhole(1.0), GaussianNoise(0.1, "each"))))
    assert seen and set(seen) == {number for purpose, number in drawn if purpose == "noise"}
    assert len({number for _, number in drawn}) == len(drawn)


@dataclasses.dataclass(frozen=True)
class Watching:
    """A transform that records the times at which it acted."""

    seen: list[Clock]

    def __call__(self, signal: Signal, clock: Clock, rngs: object) -> Signal:
        self.seen.append(clock)
        return signal


def test_every_station_gets_the_time() -> None:
    """In the second of two rounds: the batch station in each of three local iterations, the server at the last; and the cohort."""
    seen: dict[str, list[Clock]] = {"example": [], "batch": [], "server": []}
    run(dataclasses.replace(UNDEFENDED, **{station: (Watching(at),) for station, at in seen.items()}))  # type: ignore[arg-type]
    assert seen["example"] == seen["batch"] == [Clock(t, step, 2, 3, 3, 6, 20) for t in range(2) for step in range(3)]
    assert seen["server"] == [Clock(t, 2, 2, 3, 3, 6, 20) for t in range(2)]


def test_accuracy_is_over_all_examples_and_nan_is_wrong() -> None:
    """1,200 examples whose inputs are their logits: every third is right, except a NaN of class 0 among them; the mean loss."""
    logits = torch.zeros(1200, 3)
    logits[:, 0] = 1.0
    targets = torch.arange(1200) % 3
    right, loss = accuracy(nn.Identity(), {"none": torch.zeros(1)}, logits, targets)
    assert right == pytest.approx(1 / 3)
    assert loss == pytest.approx(math.log(math.e + 2) - 1 / 3, rel=1e-5)
    logits[:300] = torch.nan
    assert accuracy(nn.Identity(), {"none": torch.zeros(1)}, logits, targets)[0] == pytest.approx(300 / 1200)


def taps(defense: Defense, steps: int = 1, cohort: int = 1, noise: bool = True) -> dict[str, Parameters]:
    """Return the leaks of two victims at every leakage point."""
    net = network()
    x, y = data(2 * cohort, steps, 3)
    x, y = x.reshape(2, cohort, steps, 3, 1, 12, 12), y.reshape(2, cohort, steps, 3, 4)
    found = {}
    for tap in ("type-2", "type-1", "type-0") if cohort == 1 else ("global",):
        rngs = generators(0, "noise", [(v, k) for v in range(2) for k in range(cohort)])
        found[tap] = leak(tap, net, x, y, 0.1, defense.stations, CLOCK, rngs if noise else None)
    return found


def test_stations_before_a_leakage_point_act_on_it() -> None:
    """Draw the figure of `leakbench.federated.leakage`: stations and leakage points by name."""
    clip = ClipWhole(1.0)
    every = Stations((clip,), (clip,), (clip,), (clip,))
    assert every.before("type-2") == Stations(example=(clip,))
    assert every.before("type-1") == Stations((clip,), (clip,), (clip,))
    assert every.before("type-0") == every.before("global") == every
    assert [len(stations_before(tap)) for tap in TAPS] == [1, 3, 4, 4]


def test_undefended_taps_are_gradients() -> None:
    """type-2 is the first example's gradient, types 1 and 0 are the batch's, in gradient units for any learning rate."""
    net, (x, y) = network(), data(2, 1, 3)
    found = taps(UNDEFENDED)
    for victim in range(2):
        one = plain_gradient(net, net.parameters, x[victim, 0, :1], y[victim, 0, :1])
        all_three = plain_gradient(net, net.parameters, x[victim, 0], y[victim, 0])
        for name in one:
            torch.testing.assert_close(found["type-2"][name][victim], one[name], rtol=1e-4, atol=1e-6)
            torch.testing.assert_close(found["type-1"][name][victim], all_three[name], rtol=1e-4, atol=1e-6)
            torch.testing.assert_close(found["type-0"][name][victim], all_three[name], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("name", "noised"),
    [
        ("none", ()),
        ("fed_cdp", ("type-2", "type-1", "type-0")),
        ("fed_alpha_cdp", ("type-2", "type-1", "type-0")),
        ("fed_cdp_algorithm1", ("type-1", "type-0")),
        ("fed_cdp_valid", ("type-1", "type-0")),
        ("fed_sdp_client", ("type-1", "type-0")),
        ("fed_sdp_server", ("type-0",)),
    ],
)
def test_noise_appears_after_its_station(name: str, noised: tuple[str, ...]) -> None:
    """Each defense's noise appears at the leakage points after its station, and at no other."""
    defense = resolve("defenses", Defense, name)[1]
    real, bare = taps(defense), taps(defense, noise=False)
    for tap in real:
        assert (far(real[tap], bare[tap]) > 1e-3) == (tap in noised), tap


def test_type_0_shows_the_noise_of_the_sum() -> None:
    """fed_sdp_server adds 24 to the sum: one update of lr * L in gradient units contains 24 / 0.1 of it."""
    defense = resolve("defenses", Defense, "fed_sdp_server")[1]
    real, bare = taps(defense)["type-0"], taps(defense, noise=False)["type-0"]
    noise = torch.cat([(real[n] - bare[n]).flatten() for n in real])
    assert float(noise.std()) == pytest.approx(240, rel=0.02)


def test_the_global_tap_is_behind_the_server() -> None:
    """fed_sdp_server adds 24 to the sum of K = 2 updates: their mean, in gradient units, contains 24 / 2 / 0.1."""
    defense = resolve("defenses", Defense, "fed_sdp_server")[1]
    real, bare = (taps(defense, cohort=2, noise=noise)["global"] for noise in (True, False))
    noise = torch.cat([(real[n] - bare[n]).flatten() for n in real])
    assert float(noise.std()) == pytest.approx(120, rel=0.02)


def test_fed_cdp_noise_on_the_mean_is_sqrt_b_smaller() -> None:
    """The text's 24 on each of B = 3 examples: 24 at type-2, 24 / sqrt(3) on the mean at type-1; Algorithm 1: 24 on the mean."""
    for name, expected in (("fed_cdp", 24 / math.sqrt(3)), ("fed_cdp_algorithm1", 24.0), ("fed_cdp_valid", 8.0)):
        defense = resolve("defenses", Defense, name)[1]
        real, bare = taps(defense), taps(defense, noise=False)
        noise = torch.cat([(real["type-1"][n] - bare["type-1"][n]).flatten() for n in real["type-1"]])
        assert float(noise.std()) == pytest.approx(expected, rel=0.03), name
    noise = torch.cat([(real["type-2"][n] - bare["type-2"][n]).flatten() for n in real["type-2"]])
    assert float(noise.std()) == 0


def test_the_global_tap_is_the_mean_update_of_the_cohort() -> None:
    """With K = 2 clients, `global` is the mean of what type-1 shows of each."""
    whole = taps(UNDEFENDED, steps=2, cohort=2)["global"]
    net, (x, y) = network(), data(4, 2, 3)
    each = leak("type-1", net, x[:, None], y[:, None], 0.1, Stations(), CLOCK, None)
    for name, g in whole.items():
        torch.testing.assert_close(g, each[name].reshape(2, 2, *g.shape[1:]).mean(1))


@pytest.mark.slow
@pytest.mark.parametrize("name", names("defenses"))
@pytest.mark.parametrize("tap", ["type-2", "type-1", "type-0"])
def test_the_truth_reproduces_the_leak(name: str, tap: str) -> None:
    """The true guess of an attacker that knows the defense equals the leak up to the noise, also over L = 2 iterations."""
    defense = resolve("defenses", Defense, name)[1]
    stations = defense.stations
    if tap == "type-2" and any(isinstance(t, PruneThresholdReleased) for t in stations.example):
        pytest.skip("what is pruned of one example is decided by another, which this attacker does not guess")
    net, (x, y) = network(defense.leak_model or "cnn"), data(2, 2, 3)
    x, y = x[:, None], y[:, None]
    update = leak(tap, net, x, y, 0.1, stations, CLOCK, None)
    view = View(
        tap, net, update, batch=3, shape=(1, 12, 12), classes=4, learning_rate=0.1, local_steps=2, stations=stations
    )
    guess = (x[:, :, :1, :1], y[:, :, :1, :1]) if tap == "type-2" else (x, y)
    answer = view.respond(guess[0].flatten(1, 3), guess[1].flatten(1, 3))
    for n in update:
        torch.testing.assert_close(answer[n], update[n], rtol=1e-4, atol=1e-6)


def test_lanes_of_a_view_are_the_requested_victims() -> None:
    """respond on a subset, with separate parameters for each victim, uses that victim's parameters."""
    net, (x, y) = network(), data(2, 1, 1)
    own = {n: torch.stack([p, 2 * p]) for n, p in net.parameters.items()}
    lanes = Network(net.model, own, shared=False)
    update = leak("type-1", lanes, x[:, None], y[:, None], 0.1, Stations(), CLOCK, None)
    view = View("type-1", lanes, update, batch=1, shape=(1, 12, 12), classes=4, learning_rate=0.1)
    second = view.respond(x[1:, 0], y[1:, 0], torch.tensor([1]))
    for n in update:
        torch.testing.assert_close(second[n][0], update[n][1], rtol=1e-4, atol=1e-6)


def test_a_guess_passes_the_defense_of_the_round_of_the_leak() -> None:
    """A transform that changes over rounds gets the round of the leak."""
    net, (x, y) = network(), data(1, 2, 3)
    seen: list[Clock] = []
    view = View(
        "type-1",
        net,
        {n: p[None] for n, p in net.parameters.items()},
        batch=3,
        shape=(1, 12, 12),
        classes=4,
        learning_rate=0.1,
        local_steps=2,
        stations=Stations(batch=(Watching(seen),), server=(Watching(seen),)),
        clock=Clock(7, 0, 9, 2),
    )
    view.respond(x.flatten(1, 2), y.flatten(1, 2))
    assert seen == [Clock(7, 0, 9, 2), Clock(7, 1, 9, 2)]


@pytest.mark.parametrize(("clients", "took_part"), [(1_000_000, 200), (1_000_000, 700_000), (9_999, 3), (10_000, 0)])
def test_a_checkpoint_contains_the_counts_of_clients_that_took_part(clients: int, took_part: int) -> None:
    rounds = torch.zeros(clients, dtype=torch.int64)
    rounds[torch.randperm(clients)[:took_part]] = torch.randint(1, 9, (took_part,))
    counts = Counts(torch.tensor([1, 0, 2]), torch.tensor([4, 0, 5]), rounds)
    held = to_tensors(Round(0, {"w": torch.ones(2)}, {}, counts, 0.5, 1.0, 0.1, 0.1))
    found = counts_in(held)
    assert found is not None
    assert all(torch.equal(getattr(found, name), getattr(counts, name)) for name in ("updates", "uses", "rounds"))
    numbers = sum(tensor.numel() for name, tensor in held.items() if name.startswith("counts."))
    assert numbers <= 6 + min(clients, max(2 * took_part + 1, 10_000))
    assert counts_in({"model.w": torch.ones(2)}) is None


def test_a_network_that_explains_less_than_the_mean_has_the_accuracy_zero() -> None:
    heads = Heads((Head("age", "numbers", 1, center=(0.5,)),))
    model = with_task(nn.Linear(1, 1), heads)
    state = {"weight": torch.zeros(1, 1), "bias": torch.tensor([9.0])}
    right, loss = accuracy(model, state, torch.zeros(4, 1), torch.tensor([[0.0], [1.0], [0.0], [1.0]]))
    assert right == 0 and loss == pytest.approx((81 + 64) / 2)
    right, _ = accuracy(model, state | {"bias": torch.tensor([0.6])}, torch.zeros(4, 1), torch.full((4, 1), 0.6))
    assert right == 1
