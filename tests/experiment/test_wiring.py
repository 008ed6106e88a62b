"""The inputs that a cell gives to the attacker, to the scorer and to the training: the right ones and nothing more."""

import dataclasses
import itertools
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from leakbench.attack.methods.gradient_matching import GradientMatching
from leakbench.attack.search.lbfgs import Objective
from leakbench.attack.slots.descent import descend
from leakbench.attack.slots.stop import Iterations
from leakbench.cell import Cell, Request, identity, knowledge, probe_of, resolve_cell
from leakbench.cell.accounting import cell_epsilon
from leakbench.core.recipe import resolve
from leakbench.core.rng import generator, generators
from leakbench.core.types import Clock, Fact, Generators, Local, Network, Parameters, Signal
from leakbench.data.find import load_dataset
from leakbench.data.recipe import Federation
from leakbench.defense import Defense, phases
from leakbench.defense.clip import ClipWhole
from leakbench.defense.noise import GaussianNoise
from leakbench.defense.transform import Stations
from leakbench.execute import _largest, _sent, execute, hand_out
from leakbench.experiment.stage_train import fresh_network, train_federation
from leakbench.experiment.victims import Sent, aware, candidates, draw_victims, truth, view_of
from leakbench.federated.client import Examples, client_update, local_iterations, mean_update
from leakbench.federated.sampling import draw_clients
from leakbench.federated.simulate import Round, train
from leakbench.measure.metrics import success_threshold
from leakbench.models import build, one_hot, parameters
from leakbench.privacy.epsilon import epsilon
from leakbench.privacy.ledger import Schedule
from leakbench.storage.store import open_run

CLOCK = Clock(0, 0, 1, 1)


def flat(gradients: Parameters) -> Tensor:
    return torch.cat([g.flatten(1) for g in gradients.values()], 1)


def cell(**asked: object) -> Cell:
    return resolve_cell(Request(**{"attack": "cpl", "victims": 4, "networks": 1, "train_rounds": 0, **asked}), None)  # type: ignore[arg-type]


def test_a_cell_contains_the_requested_settings() -> None:
    """Each option is in the executed settings and changes the hash, as other data and another recipe do."""
    plain = cell()
    asked = {
        **{"train_rounds": 1, "clients": 7, "clients_per_round": 2, "local_iterations": 9, "batch": 1, "leak_batch": 4},
        **{"victims": 5, "candidates": 50, "seed": 1, "success": 0.2, "model": "mlp", "leak_model": "lenet_dlg"},
    }
    for name, value in asked.items():
        other = cell(**{name: value})
        numbers = {**vars(other.settings), **vars(other.settings.federation)}
        assert numbers["rounds" if name == "train_rounds" else name] == value
        assert other.hash != plain.hash
    assert (plain.settings.model, plain.settings.leak_model) == ("cnn", "lenet_cpl")
    assert plain.settings.leak_batch == plain.settings.federation.batch
    assert cell(clients=7).settings.federation.clients_per_round == min(7, plain.settings.federation.clients_per_round)
    assert live(leak_rounds=("0", "last")).settings.leak_rounds == (0, 2)
    short = cell(iterations=7)
    assert isinstance(short.attack.method, GradientMatching)
    assert short.attack.method.stop == Iterations(limit=7)
    assert short.hash != plain.hash
    found = load_dataset("faces")
    changed = (*found[:2], dataclasses.replace(found[2], content="other"))
    asked = Request(attack="cpl", victims=4, networks=1, train_rounds=0)
    assert resolve_cell(asked, None, load=lambda *_, **__: changed).hash != plain.hash


def test_victims_are_the_same_at_every_leakage_point() -> None:
    """At any leakage point, victim v is the same example, with other examples in its batch."""
    some = cell(leak_batch=3)
    handed = hand_out(some)
    first = [draw_victims(some, tap, 0, handed).indices for tap in ("type-2", "type-1", "type-0")]
    assert all(torch.equal(first[0], other) for other in first[1:])
    assert all(len(set(batch.flatten().tolist())) == 3 for batch in first[0])
    assert torch.isin(first[0], some.data.victims).all()


def test_victims_are_the_same_in_a_sum_in_the_live_protocol() -> None:
    """Two victims of the live protocol, alone at type-1 and among three at `global`: the same, with the same batches."""
    some = cell(protocol="live", victims=2, train_rounds=1, clients_per_round=3, taps=("type-1", "global"))
    handed = hand_out(some)
    alone, among = (draw_victims(some, tap, 0, handed).indices for tap in ("type-1", "global"))
    assert torch.equal(among[:, :1], alone)
    assert among.shape[1] == 3


def test_an_oblivious_view_contains_the_leak_and_no_truth() -> None:
    """fed_cdp: noise of 24, different for each victim; no stations to run, no candidates that would include the truth."""
    some = cell(defense="fed_cdp")
    victims = draw_victims(some, "type-2", 0, hand_out(some))
    model, weights = fresh_network(some, trained=False)
    view = view_of(some, "type-2", 0, victims, torch.arange(4), Sent(Network(model, weights)))
    assert view.stations == Stations()
    assert view.candidates is None
    assert view.labels is None
    assert view.logits is None
    assert not view.knowledge.defense
    noise = flat(view.update)
    assert 23 < float(noise.std()) < 25
    assert (torch.corrcoef(noise) - torch.eye(4)).abs().max() < 0.1
    assert view.public is not None
    seen = view.public.inputs.flatten(1)
    truth = some.data.train_inputs[victims.indices.flatten()].flatten(1)
    assert torch.cdist(truth, seen).min() > 1e-3


def live(**asked: object) -> Cell:
    """Return four clients of the digits, all of them in every round, each with L = 2 iterations of B = 2."""
    federation = {"clients": 4, "clients_per_round": 4, "local_iterations": 2, "batch": 2, "train_rounds": 2}
    return cell(**{"protocol": "live", "dataset": "digits", "leak_rounds": ("0", "1"), **federation, **asked})


def test_noise_is_independent_between_victims_clients_and_rounds() -> None:
    """24 on each of two clients is 24 / sqrt(2) on their mean; all noises are independent, in any chunk or round."""
    some = live(defense="fed_cdp", victims=2, clients_per_round=2, local_iterations=1, batch=1)
    handed, (model, weights) = hand_out(some), fresh_network(some, trained=True)
    seen = []
    for round_number in (0, 1):
        victims = draw_victims(some, "global", round_number, handed)
        for lanes in (torch.tensor([0]), torch.tensor([1])):
            sent = Sent(Network(model, weights))
            seen.append(flat(view_of(some, "global", round_number, victims, lanes, sent).update))
    noise = torch.cat(seen)
    assert noise.std(1).tolist() == pytest.approx([24 / 2**0.5] * 4, rel=0.05)
    assert (torch.corrcoef(noise) - torch.eye(4)).abs().max() < 0.1


@pytest.mark.parametrize("defense", ["fed_sdp_client", "fed_sdp_server"])
def test_the_leak_of_a_victim_does_not_depend_on_its_chunk(defense: str) -> None:
    """Alone, and second of three."""
    some = live(defense=defense, victims=3, clients=6, clients_per_round=2)
    handed, (model, weights) = hand_out(some), fresh_network(some, trained=True)
    victims = draw_victims(some, "global", 0, handed)
    beside, alone = (
        flat(view_of(some, "global", 0, victims, torch.tensor(lanes), Sent(Network(model, weights))).update)
        for lanes in ([0, 1, 2], [1])
    )
    torch.testing.assert_close(beside[1], alone[0], rtol=1e-4, atol=1e-4)


def test_the_live_leak_equals_the_training_step() -> None:
    """The leak of a whole cohort, times its clients' step of -eta L, is the step of the global model; the uses agree too."""
    one, each = live(victims=1, taps=("global",)), live(victims=4, taps=("type-1",))
    handed, (model, start) = hand_out(one), fresh_network(one, trained=True)
    f = one.settings.federation
    states = list(train(Network(model, start), one.data, handed, f, one.defense, 0))
    before, used = start, torch.zeros_like(states[0].counts.uses)
    for t, after in enumerate(states):
        sent = Sent(Network(model, before))
        update = view_of(one, "global", t, draw_victims(one, "global", t, handed), torch.tensor([0]), sent).update
        for n, u in update.items():
            torch.testing.assert_close(
                before[n] - f.learning_rate * 2 * u[0], after.parameters[n], rtol=1e-4, atol=1e-6
            )
        used = used + torch.bincount(draw_victims(each, "type-1", t, handed).indices.flatten(), minlength=len(used))
        assert torch.equal(used, after.counts.uses)
        before = after.parameters


@pytest.mark.parametrize("tap", ["type-2", "type-1", "global"])
def test_the_truth_reproduces_the_leak_through_the_view(tap: str) -> None:
    """Examples and labels stored for scoring reproduce the leak, at the step size and time that the attacker gets."""
    some = live(victims=2, clients=4, clients_per_round=2)
    victims = draw_victims(some, tap, 1, hand_out(some))
    model, weights = fresh_network(some, trained=True)
    view = view_of(some, tap, 1, victims, torch.arange(2), Sent(Network(model, weights)))
    inputs, labels, indices = truth(some, tap, victims)
    assert torch.equal(inputs, some.data.train_inputs[indices])
    answered = view.respond(inputs, one_hot(labels, 10))
    torch.testing.assert_close(flat(answered), flat(view.update), rtol=1e-4, atol=1e-6)
    assert view.learning_rate == some.settings.federation.learning_rate
    assert view.clock == Clock(1, 0, 2, 2, cohort=2, clients=4, examples_per_client=100)


def test_an_adaptive_attacker_runs_the_defense() -> None:
    """With knowledge of the recipe the attacker has its stations, and the table says so."""
    plain = cell(defense="fed_cdp")
    some = dataclasses.replace(plain, attack=dataclasses.replace(plain.attack, knows="defense"))
    victims = draw_victims(some, "type-2", 0, hand_out(some))
    model, weights = fresh_network(some, trained=False)
    view = view_of(some, "type-2", 0, victims, torch.arange(4), Sent(Network(model, weights)))
    assert view.stations == some.defense.stations
    assert view.knowledge.defense
    assert knowledge(some).defense
    blind = view_of(plain, "type-2", 0, victims, torch.arange(4), Sent(Network(model, weights)))
    told = aware(blind, plain)
    assert (told.stations, told.knowledge) == (view.stations, view.knowledge)


def test_candidates_contain_each_victim_once_and_no_other_batch_member() -> None:
    """The position is independent of the victim; other members of a leaked batch are not candidates."""
    some = cell(leak_batch=3)
    victims = draw_victims(some, "type-1", 0, hand_out(some))
    shown, own = candidates(some, victims)
    first = some.data.train_inputs[victims.indices[:, 0, 0, 0]]
    assert torch.equal(shown.inputs[own], first)
    assert len(shown.labels) == 75 - 4 * 2
    assert own.tolist() != [0, 1, 2, 3]
    fellows = some.data.train_inputs[victims.indices[:, 0, 0, 1:].flatten()].flatten(1)
    assert torch.cdist(fellows, shown.inputs.flatten(1)).min() > 1e-3


def test_a_cell_is_scored_with_its_own_data(tmp_path: Path) -> None:
    """eta is the set's; the baseline guesses from the test split with the label; the first of a batch is identified."""
    some = cell(defense="none", dataset="digits", attack="identification", victims=20, leak_batch=2, taps=("type-1",))
    with open_run(tmp_path / "run", identity(some, "test")) as run:
        summary = execute(some, run, lambda phase, done, total: None).as_dict()
    rows = pd.read_parquet(tmp_path / "run" / "rows.parquet")
    pool = some.data.train_inputs[some.data.victims]
    assert rows["eta"].unique().tolist() == [pytest.approx(success_threshold(pool, generator(0, "eta")))]
    of_class = torch.stack([some.data.test_inputs[some.data.test_targets == c].mean(0) for c in range(10)])
    truth = some.data.train_inputs[torch.tensor(rows["example"])]
    expected = (of_class[torch.tensor(rows["label"])] - truth).square().flatten(1).mean(1).sqrt()
    torch.testing.assert_close(torch.tensor(rows["null_rmse"]).float(), expected, rtol=1e-4, atol=1e-5)
    assert summary["taps"]["type-1"]["identified"] >= 0.9
    assert summary["taps"]["type-1"]["candidates"] == 1000


def quiet(phase: str, done: int, total: int) -> None:
    """Show no progress."""


def run_of(some: Cell, folder: Path) -> tuple[dict[str, Any], pd.DataFrame]:
    """Return the summary and the rows of a whole run."""
    with open_run(folder, identity(some, "test")) as run:
        summary = execute(some, run, quiet).as_dict()
    return summary, pd.read_parquet(folder / "rows.parquet")


def test_identification_runs_the_defense_for_every_attack(tmp_path: Path) -> None:
    """Also for an oblivious attack: gradients clipped to 0.001 without noise are all distinguished."""
    plain = cell(taps=("type-2",), iterations=1)
    clip = Defense(title="t", cite="c", unit="example", example=(ClipWhole(1e-3),))
    summary, rows = run_of(dataclasses.replace(plain, defense=clip), tmp_path / "run")
    assert summary["taps"]["type-2"]["identified"] == 1.0
    pool = plain.data.train_inputs[plain.data.victims]  # Only faces: the other examples of the set cannot be victims.
    assert rows["eta"].tolist() == pytest.approx([success_threshold(pool, generator(0, "eta"))] * 4)


@pytest.mark.slow
def test_a_victim_is_the_same_in_any_chunk_and_each_point_is_attacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One victim at a time starts from the guess of both together; noise at the client is in type-1 and not in type-2."""
    some = cell(
        dataset="digits", defense="fed_sdp_client", victims=2, iterations=1, leak_batch=1, taps=("type-2", "type-1")
    )
    together = run_of(some, tmp_path / "together")[1]
    monkeypatch.setattr("leakbench.experiment.stage_attack._chunk", lambda *_: 1)
    apart = run_of(some, tmp_path / "apart")[1]
    same = ["tap", "victim", "example", "label", "null_rmse", "identified"]
    pd.testing.assert_frame_equal(apart[same], together[same])
    first, second = (load_file(tmp_path / name / "reconstructions.safetensors") for name in ("together", "apart"))
    for tap in ("type-2", "type-1"):
        name = f"{tap}.round0.trajectory"  # The value before any step is that of the start.
        torch.testing.assert_close(first[name], second[name], rtol=1e-4, atol=1e-6)
    bare, noised = (together[together["tap"] == tap] for tap in ("type-2", "type-1"))
    assert bare["identified"].tolist() == [1.0] * 2
    assert (bare["distance"].to_numpy() < noised["distance"].to_numpy()).all()


def test_the_trained_model_leaks_and_is_accounted(tmp_path: Path) -> None:
    """After one round of two, the model of that round is sent; the ledger gets the largest of all counts."""
    some = live(clients=6, clients_per_round=3, leak_rounds=("1",))
    handed, (model, start) = hand_out(some), fresh_network(some, trained=True)
    states = list(train(Network(model, start), some.data, handed, some.settings.federation, some.defense, 0))
    with open_run(tmp_path / "run", identity(some, "test")) as run:
        train_federation(some, run, handed, quiet)
        sent, largest = _sent(some, run, 1).network.parameters, _largest(run)
    assert all(torch.equal(sent[n], states[0].parameters[n]) for n in start)
    counts = states[-1].counts
    expected = {"example": counts.updates, "uses": counts.uses, "client": counts.rounds}
    assert largest == {name: int(count.max()) for name, count in expected.items()}


def test_the_ledger_gets_the_trained_federation() -> None:
    """The epsilon of a cell follows from its numbers, for the tensors of the trained model."""
    some = cell(defense="fed_sdp_server", dataset="digits", train_rounds=2)
    f, handed = some.settings.federation, hand_out(some)
    counted = {"example": 3, "uses": 5, "client": 2}
    schedule = Schedule(
        clients=f.clients,
        clients_per_round=f.clients_per_round,
        rounds=2,
        local_iterations=f.local_iterations,
        batch=f.batch,
        examples_per_client=f.examples_per_client,
        copies=handed.indices.numel() / len(some.data.train_targets),
        most_copies=int(torch.bincount(handed.indices.flatten()).max()),
        client_sampling="fixed",
        batch_sampling="fixed",
        tensors=6,
        largest=counted,
    )
    for name in ("fed_sdp_server", "fed_cdp_valid"):
        defense = resolve("defenses", Defense, name)[1]
        now = dataclasses.replace(schedule, client_sampling=defense.cohorts, batch_sampling=defense.batches)
        expected = epsilon(
            phases(defense, probe_of(defense, some.data, some.settings)), defense.unit, defense.claim, now
        )
        assert cell_epsilon(defense, some.data, some.settings, handed, counted) == expected


def rounds_of(defense: Defense, rounds: int = 2) -> tuple[list[Round], Parameters]:
    """Return two rounds of 3 of 6 clients on the digits, and the weights before the first."""
    _, recipe, digits = load_dataset("digits")
    model = build("mlp", digits.shape, digits.classes, generator(0, "model"))
    handed = recipe.federation.partition(digits.train_targets, 6, 20, generator(0, "partition"))
    federation = Federation(rounds, 4, 20, clients=6, clients_per_round=3, local_iterations=3, learning_rate=0.1)
    start = parameters(model)
    return list(train(Network(model, start), digits, handed, federation, defense, 0)), start


def moves(states: list[Round], start: Parameters) -> list[Tensor]:
    weights = [start, *(s.parameters for s in states)]
    return [torch.cat([(b[n] - a[n]).flatten() for n in a]) for a, b in itertools.pairwise(weights)]


@dataclasses.dataclass(frozen=True)
class Remember:
    """A transform that counts its uses under `name` and keeps the gradients; it adds `each` for every use."""

    name: str
    each: float = 1.0

    def __call__(self, signal: Signal, clock: Clock, rngs: Generators | None) -> Signal:
        before = signal.memory.get(self.name, torch.zeros(signal.lanes, 1))
        return signal.remembering(self.name, before + self.each)


def test_the_memory_of_a_defense_is_sent_with_the_model() -> None:
    """L = 3 uses a round at the clients, one at the server; each round begins with the mean of the previous one."""
    parts = {"example": (Remember("uses"),), "client": (Remember("updates"),), "server": (Remember("updates", 10.0),)}
    states, _ = rounds_of(Defense(title="t", cite="c", unit="client", **parts))  # type: ignore[arg-type]
    assert [{n: float(m) for n, m in s.memory.items()} for s in states] == [
        {"uses": 3.0, "updates": 11.0},
        {"uses": 6.0, "updates": 22.0},
    ]


def test_a_client_station_gets_its_examples_and_network() -> None:
    """At the example station one batch and the network of that iteration, at the client all L batches and the network as sent."""
    seen: list[Local] = []

    @dataclasses.dataclass(frozen=True)
    class Look:
        def __call__(self, signal: Signal, clock: Clock, rngs: Generators | None) -> Signal:
            assert signal.local is not None
            seen.append(signal.local)
            return signal

    model = build("mlp", (9,), 2, generator(0, "model"))
    x, y = torch.rand(2, 3, 4, 9), one_hot(torch.zeros(2, 3, 4, dtype=torch.int64), 2)
    sent = Network(model, parameters(model))
    examples = Examples(x, y, torch.ones(2, 3, 4), 4)
    client_update(sent, examples, 0.1, Stations(example=(Look(),), client=(Look(),)), CLOCK, None)
    assert [look.inputs.shape for look in seen] == [(2, 4, 9)] * 3 + [(2, 12, 9)]
    assert torch.equal(seen[1].inputs, x[:, 1])
    assert torch.equal(seen[3].inputs, x.flatten(1, 2))
    assert [look.network.shared for look in seen] == [True, False, False, True]


def test_every_round_draws_separately() -> None:
    """The noise of two rounds is unrelated, and so are their cohorts."""
    loud = (ClipWhole(1e-6), GaussianNoise(1e6, "each"))
    states, start = rounds_of(Defense(title="t", cite="c", unit="client", client=loud))
    first, second = moves(states, start)
    assert abs(float(torch.corrcoef(torch.stack([first, second]))[0, 1])) < 0.05
    # Three clients draw 1 each on their sum: 1 / sqrt(3) on the mean, unlike one noise for all three.
    assert float(first.std()) == pytest.approx(3**-0.5, rel=0.05)
    cohorts = {tuple(draw_clients(100, 10, "fixed", 0, t).tolist()) for t in range(3)}
    assert len(cohorts) == 3
    assert not torch.equal(states[0].counts.rounds * 2, states[1].counts.rounds)
    at_server = Defense(title="t", cite="c", unit="client", server=(ClipWhole(1e-6), GaussianNoise(1e6, "sum")))
    assert abs(float(torch.corrcoef(torch.stack(moves(*rounds_of(at_server))))[0, 1])) < 0.05


def test_every_local_iteration_draws_separately() -> None:
    """The noise of two local iterations is unrelated."""
    model = build("mlp", (9,), 2, generator(0, "model"))
    x, y = torch.rand(1, 2, 3, 9), one_hot(torch.zeros(1, 2, 3, dtype=torch.int64), 2)
    loud = Stations(example=(ClipWhole(1e-6), GaussianNoise(1e6, "each")))
    examples = Examples(x, y, torch.ones(1, 2, 3), 3)
    rngs = generators(0, "noise", [(0,)])
    one, two = (
        flat(i.batch.grads)[0]
        for i in local_iterations(Network(model, parameters(model)), examples, 0.1, loud, CLOCK, rngs)
    )
    assert abs(float(torch.corrcoef(torch.stack([one, two]))[0, 1])) < 0.05


def test_padding_has_no_noise_and_the_divisor_is_the_expected_batch() -> None:
    """Two examples and one of padding at B = 4: the sum of two noises over 4."""
    model = build("mlp", (9,), 2, generator(0, "model"))
    x, y = torch.rand(1, 1, 3, 9), one_hot(torch.zeros(1, 1, 3, dtype=torch.int64), 2)
    loud = Stations(example=(ClipWhole(1e-6), GaussianNoise(1e6, "each")))
    examples = Examples(x, y, torch.tensor([[[1.0, 1.0, 0.0]]]), 4)
    update = mean_update(Network(model, parameters(model)), examples, 0.1, loud, CLOCK, generators(0, "noise", [(0,)]))
    assert float(flat(update.grads).std()) == pytest.approx(2**0.5 / 4, rel=0.03)


def test_a_poisson_cohort_is_divided_by_its_expected_size() -> None:
    """Noise of 1 on the sum of any number of clients moves the model by 1 / K_t."""
    quiet = (ClipWhole(1e-6), GaussianNoise(1e6, "sum"))
    defense = Defense(title="t", cite="c", unit="client", server=quiet, cohorts="poisson")
    states, start = rounds_of(defense, rounds=4)
    came = [
        int(b.counts.rounds.sum() - a)
        for a, b in zip([0, *(s.counts.rounds.sum() for s in states)], states, strict=False)
    ]
    assert len(set(came)) > 1
    for move in moves(states, start):
        assert float(move.std()) == pytest.approx(1 / 3, rel=0.05)


def test_the_ledger_counts_participating_clients_and_examples() -> None:
    """Two rounds of 3 clients with 20 examples each, 3 iterations of 4; Poisson batches count the drawn examples, not padding."""
    states, _ = rounds_of(Defense(title="t", cite="c", unit="example"))
    counts = states[-1].counts
    assert int(counts.rounds.sum()) == 2 * 3
    assert int(counts.updates.sum()) == 2 * 3 * 20
    assert int(counts.uses.sum()) == 2 * 3 * 3 * 4
    drawn = rounds_of(Defense(title="t", cite="c", unit="example", batches="poisson"))[0][-1].counts.uses
    assert 0.5 * 72 < int(drawn.sum()) < 1.5 * 72


def test_spread_of_updates() -> None:
    """Updates of 1 and 5 in every coordinate: V_c = 4, U_s = 9 (Geyer et al., section 3)."""
    from leakbench.federated.simulate import _spread  # noqa: PLC0415

    updates = {"a": torch.tensor([1.0, 5.0])[None, :, None].expand(1, 2, 5)}
    assert _spread(updates) == (pytest.approx(4.0), pytest.approx(9.0))


def test_the_spread_is_measured_on_received_updates() -> None:
    """Later operations of the server do not change it."""
    bare, _ = rounds_of(Defense(title="t", cite="c", unit="client"), rounds=1)
    clipped, _ = rounds_of(Defense(title="t", cite="c", unit="client", server=(ClipWhole(1e-6),)), rounds=1)
    assert clipped[0].between_client_variance == bare[0].between_client_variance > 0
    assert clipped[0].update_scale == bare[0].update_scale > 0


def test_sensitivities_of_lanes() -> None:
    """Gathered, the largest counts; in noise, each lane's own."""
    lanes = Signal(
        {"a": torch.zeros(2, 1, 20_000)}, sensitivity=torch.tensor([1.0, 10.0]), facts=(Fact("clip", norm=10.0),)
    )
    gathered = lanes.gathered(2).sensitivity
    assert gathered is not None
    assert gathered.tolist() == [10.0]
    noised = GaussianNoise(1.0, "each")(lanes, CLOCK, generators(0, "noise", [(0,), (1,)])).grads["a"]
    assert noised.std(2).flatten().tolist() == pytest.approx([1.0, 10.0], rel=0.03)


@dataclasses.dataclass
class Scripted:
    """A search from 0 by steps of 1, one evaluation each; a value of 0 settles it."""

    points: Tensor
    evaluations: Tensor
    settled: Tensor

    def step(self, objective: Objective) -> Tensor:
        values = objective(self.points, torch.arange(len(self.points)))[0]
        self.points, self.evaluations, self.settled = self.points + 1, self.evaluations + 1, values == 0
        return values

    def keep(self, lanes: Tensor) -> None:
        self.points, self.evaluations, self.settled = self.points[lanes], self.evaluations[lanes], self.settled[lanes]


@pytest.mark.parametrize(("script", "best"), [((3.0, 1.0, 2.0, 5.0), 1.0), ((3.0, 2.0, 2.0, 1.0), 3.0)])
def test_the_best_point_is_kept_even_if_it_is_the_last(script: tuple[float, ...], best: float) -> None:
    """The least value at any step; the snapshots record when."""

    def objective(points: Tensor, lanes: Tensor) -> tuple[Tensor, Tensor]:
        return torch.tensor([script[int(p)] for p in points[:, 0]]), torch.zeros_like(points)

    one = torch.zeros(1, dtype=torch.int64)
    found = descend(Scripted(torch.zeros(1, 1), one.clone(), one.bool()), objective, Iterations(limit=3))
    assert found.best.item() == best
    assert found.trajectory[:, 0].tolist() == list(script[:3])
    if best == 1.0:
        assert found.snapshots[:, 0, 0].tolist() == [0.0, 1.0, 1.0]


def test_a_finished_victim_keeps_its_count() -> None:
    """At the limit, settled after two, not finite in the second: steps 3, 2, 2, and one more evaluation for each end."""
    scripts = torch.tensor([[3.0, 1.0, 2.0, 5.0], [4.0, 0.0, 9.0, -1.0], [2.0, torch.nan, 8.0, -1.0]])

    def objective(points: Tensor, lanes: Tensor) -> tuple[Tensor, Tensor]:
        return scripts[lanes, points[:, 0].long()], torch.zeros_like(points)

    three = torch.zeros(3, dtype=torch.int64)
    found = descend(Scripted(torch.zeros(3, 1), three.clone(), three.bool()), objective, Iterations(limit=3))
    assert found.steps.tolist() == [3, 2, 2]
    assert found.evaluations.tolist() == [4, 3, 3]
    assert found.best[:, 0].tolist() == [1.0, 1.0, 0.0]
    assert found.value.tolist() == [1.0, 0.0, 2.0]
    expected = torch.tensor([[3.0, 4.0, 2.0], [1.0, 0.0, torch.nan], [2.0, torch.nan, torch.nan]])
    torch.testing.assert_close(found.trajectory, expected, equal_nan=True)


def test_each_victim_is_attacked_with_separate_draws(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three victims in chunks of two: separate generators by round and position, for the search and the random records."""
    asked: dict[str, list[tuple[int, ...]]] = {"attack": [], "random records": []}

    def remembered(seed: int, purpose: str, indices: Any) -> Generators:
        asked[purpose].extend(indices)
        return generators(seed, purpose, indices)

    monkeypatch.setattr("leakbench.experiment.stage_attack.generators", remembered)
    monkeypatch.setattr("leakbench.experiment.stage_attack._chunk", lambda *_: 2)
    three = cell(
        dataset="cancer",
        attack="inverting_gradients_table",
        victims=3,
        taps=("type-1",),
        leak_batch=1,
        candidates=5,
        iterations=1,
    )
    with open_run(tmp_path, identity(three, "test")) as run:
        execute(three, run, lambda *_: None)
    assert asked == {"attack": [(0, 0), (0, 1), (0, 2)], "random records": [(0, 0), (0, 1), (0, 2)]}
