"""Canary clients of a training: what they send, when they take part, what their scores are, and the audit of a run."""

import dataclasses
import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from command_line import called

from leakbench.auditing.cell import audit_training
from leakbench.auditing.one_run import OneRun
from leakbench.cell import Cell, Request
from leakbench.cell.accounting import cell_epsilon
from leakbench.cell.budget import prepare
from leakbench.cell.cell import hand_out
from leakbench.core.errors import InputError
from leakbench.core.types import Clock, Local, Network, Signal
from leakbench.experiment.stage_train import fresh_network
from leakbench.federated.canaries import FAR, Canaries, draw_canaries
from leakbench.federated.sampling import draw_clients
from leakbench.federated.simulate import Round, from_tensors, to_tensors, train

DELTA = 1e-5

SMALL = Request(
    dataset="cancer",
    defense="fed_sdp_valid",
    attack="cpl",
    iterations=1,
    victims=1,
    leak_batch=1,
    candidates=2,
    taps=("type-2",),
    train_rounds=4,
    clients=20,
    clients_per_round=5,
    local_iterations=1,
    canaries=200,
)


def drawn(cell: Cell) -> tuple[Network, Canaries]:
    model, start = fresh_network(cell, trained=True)
    return Network(model, start), draw_canaries(start, cell.settings.canaries, cell.settings.seed)


def trained(cell: Cell, done: Round | None = None, stop_after: int | None = None) -> list[Round]:
    """Return the rounds of a cell's training with its canaries."""
    s, (network, canaries) = cell.settings, drawn(cell)
    options = {"done": done, "stop_after": stop_after, "canaries": canaries}
    return list(train(network, cell.data, hand_out(cell), s.federation, cell.defense, s.seed, **options))


def audited(ledger: Cell, of: Cell) -> OneRun:
    """Return the audit of the training of one cell with the ledger of another."""
    scores = trained(of)[-1].canary_scores
    assert scores is not None
    return audit_training(ledger, scores.numpy(), drawn(of)[1].included.numpy(), DELTA)


def valid(cell: Cell) -> float:
    found = cell_epsilon(cell.defense, cell.data, cell.settings, hand_out(cell), None, DELTA).valid
    assert found is not None
    return found


def test_an_update_has_one_far_coordinate_in_each_tensor_with_enough() -> None:
    """No two canaries share one; the inner product with the own direction is the length, and with others 0."""
    like = {"w": torch.zeros(30, 4), "b": torch.zeros(5), "v": torch.zeros(60)}
    canaries = draw_canaries(like, 50, seed=0)
    sent = canaries.updates(torch.arange(50), like)
    for name, update in sent.items():
        assert update.shape == (50, 1, *like[name].shape)
        assert ((update != 0).flatten(1).sum(1) == (name != "b")).all()
        assert (update.flatten(1).abs().amax(1) == FAR * (name != "b")).all()
    assert len(canaries.places["w"].unique()) == len(canaries.places["v"].unique()) == 50
    own = canaries.products({n: u[7, 0] for n, u in sent.items()})
    assert float(own[7]) == pytest.approx(FAR * 2**0.5)
    assert int((own != 0).sum()) == 1


def test_more_canaries_than_coordinates_share_those_of_the_largest_tensor() -> None:
    """Each coordinate has nearly the same number of them."""
    canaries = draw_canaries({"w": torch.zeros(30), "b": torch.zeros(5)}, 100, seed=0)
    assert set(canaries.places) == {"w"}
    assert set(torch.bincount(canaries.places["w"]).tolist()) == {3, 4}


def test_half_of_the_canaries_are_included_and_take_part_at_the_rate_of_the_clients() -> None:
    """Rate 1/4 in each round, drawn again for each; a canary that is left out never takes part."""
    canaries = draw_canaries({"w": torch.zeros(9)}, 4000, seed=1)
    assert 0.47 < canaries.included.double().mean() < 0.53
    clock = Clock(0, 0, 10, 1, cohort=5, clients=20)
    rounds = [canaries.participants(dataclasses.replace(clock, round=t)) for t in range(10)]
    assert all(canaries.included[ids].all() for ids in rounds)
    assert sum(map(len, rounds)) == pytest.approx(10 * 0.25 * int(canaries.included.sum()), rel=0.05)
    assert set(rounds[0].tolist()) != set(rounds[1].tolist())


def test_scores_are_the_clip_of_each_participation() -> None:
    """With nearly no noise, an included canary's score is C / K_t for each of its rounds, and that of others is near 0."""
    cell = prepare(dataclasses.replace(SMALL, noise_factor=1e-6), None)
    (_, canaries), f = drawn(cell), cell.settings.federation
    scores = trained(cell)[-1].canary_scores
    assert scores is not None
    took_part = torch.zeros(200, dtype=torch.float64)
    for t in range(4):
        took_part[canaries.participants(cell.defense.clock(f, t))] += 1
    norm = cell.defense.server[0].norm  # type: ignore[attr-defined]
    expected = took_part * norm / f.clients_per_round
    assert np.corrcoef(scores, expected)[0, 1] > 0.9
    assert float((scores - expected)[~canaries.included].abs().median()) < 0.3 * norm / f.clients_per_round


def test_a_training_without_canaries_does_not_change() -> None:
    """The same models as before there were canaries, and no scores."""
    cell = prepare(dataclasses.replace(SMALL, canaries=0), None)
    (network, _), s = drawn(cell), cell.settings
    rounds = list(train(network, cell.data, hand_out(cell), s.federation, cell.defense, s.seed))
    assert all(now.canary_scores is None for now in rounds)
    assert "canaries.scores" not in to_tensors(rounds[-1])
    with_canaries = trained(prepare(SMALL, None))
    name = next(iter(network.parameters))
    assert not torch.equal(rounds[0].parameters[name], with_canaries[0].parameters[name])


def test_canaries_are_counted_as_members_with_those_that_are_not_finite() -> None:
    """A canary with an infinite update or gradient counts as zero at the clip; the clients or examples are all finite."""
    for request, kind in (
        (SMALL, "updates"),
        (dataclasses.replace(SMALL, defense="fed_sdp_client_valid"), "updates"),
        (EXAMPLES, "examples"),
    ):
        cell = prepare(request, None)
        (network, canaries), s, f = drawn(cell), cell.settings, cell.settings.federation
        endless, options = dataclasses.replace(canaries, norm=math.inf), (f, cell.defense, s.seed)
        for now in train(network, cell.data, hand_out(cell), *options, canaries=endless, stop_after=2):
            clock = cell.defense.clock(f, now.round)
            clients = draw_clients(f.clients, f.clients_per_round, cell.defense.cohorts, s.seed, now.round)
            own = len(canaries.participants(clock))
            if kind == "examples":
                own = int(canaries.examples(clients, clock, f.local_iterations, 100 / 400).uses.sum())
            assert now.members[f"{kind}_zeroed"] == own > 0
            assert now.members[kind] >= own + len(clients)


def test_a_checkpoint_resumes_to_the_same_scores() -> None:
    """Two rounds, their checkpoint, and the other two give the scores of four rounds."""
    cell = prepare(SMALL, None)
    whole, half = trained(cell)[-1], trained(cell, stop_after=2)[-1]
    row = {
        "round": half.round,
        **{n: getattr(half, n) for n in ("accuracy", "loss", "between_client_variance", "update_scale")},
    }
    resumed = trained(cell, done=from_tensors(to_tensors(half), row))[-1]
    assert whole.canary_scores is not None
    assert resumed.canary_scores is not None
    assert torch.equal(whole.canary_scores, resumed.canary_scores)


@pytest.mark.parametrize(
    "defense", ["fed_sdp_valid", "fed_sdp_client_valid", "fed_sdp_layers_valid", "flower_fixed_server"]
)
def test_audited_bounds_are_below_the_valid_epsilon(defense: str) -> None:
    """Trainings of defenses whose epsilon is true."""
    cell = prepare(dataclasses.replace(SMALL, defense=defense, noise_factor=0.1), None)
    audit = audited(cell, cell)
    assert max(audit.lower_bound, audit.lower_bound_family or 0.0) <= valid(cell)


@pytest.mark.statistics
def test_audits_of_trainings_are_wrong_in_at_most_five_of_a_hundred() -> None:
    """40 trainings with 500 canaries at a tenth of the noise: at most 5 bounds are above the valid epsilon, and not all are 0."""
    bounds = []
    for seed in range(40):
        cell = prepare(dataclasses.replace(SMALL, seed=seed, noise_factor=0.1, canaries=500), None)
        audit = audited(cell, cell)
        bounds.append(max(audit.lower_bound, audit.lower_bound_family or 0.0))
    assert sum(bound > valid(cell) for bound in bounds) <= 5
    assert np.mean(bounds) > 0.05 * valid(cell)


def test_a_training_with_less_noise_than_its_ledger_is_found() -> None:
    """A hundredth of the noise of the ledger: the bound exceeds the ledger's valid epsilon."""
    ledger = prepare(dataclasses.replace(SMALL, canaries=1000), None)
    quiet = prepare(dataclasses.replace(SMALL, canaries=1000, noise_factor=0.01), None)
    audit = audited(ledger, quiet)
    assert audit.lower_bound > valid(ledger)


def test_a_run_prints_the_bound_next_to_the_valid_epsilon(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """The summary has the audit with its counts, the headline has the bound, and the details what it does not show."""
    options = ["run", "--dataset", "cancer", "--defense", "fed_sdp_valid", "--noise-factor", "0.05", "--attack", "cpl"]
    options += ["--iterations", "1", "--victims", "1", "--leak-batch", "1", "--candidates", "2", "--taps", "type-2"]
    options += ["--train-rounds", "2", "--local-iterations", "1", "--canaries", "300", "--device", "cpu", "--quiet"]
    options += ["--out", str(tmp_path / "run")]
    code, out, _ = called(monkeypatch, capsys, *options, "--verbose")
    assert code == 0
    assert "audited at least" in out
    assert "in this training (not more than the valid one)" in " ".join(out.split())
    assert "a small bound does not guarantee privacy" in " ".join(out.split())
    code, out, _ = called(monkeypatch, capsys, *options, "--json")
    summary = json.loads(out)
    assert summary["audited"]["canaries"] == 300
    assert 100 < summary["audited"]["included"] < 200
    assert summary["audited"]["lower_bound"] <= summary["epsilon"]["valid"]
    assert "canary clients took part" in summary["notes"]["audited"]


@pytest.mark.parametrize(
    ("defense", "message"),
    [("fed_cdp", "draws fixed batches, expected Poisson"), ("sign_client", "has no valid epsilon")],
)
def test_canaries_need_a_valid_epsilon_and_examples_poisson_batches(defense: str, message: str) -> None:
    """Other defenses are refused before the data are loaded."""
    with pytest.raises(InputError, match=f"canaries: defense '{defense}' {message}"):
        prepare(dataclasses.replace(SMALL, defense=defense), None)


def test_canaries_take_turns_where_clients_do() -> None:
    """Twelve canaries, 10 clients, 3 a round: in 10 rounds each has the three turns of a client, never two in 3 rounds."""
    drawn = dataclasses.replace(draw_canaries({"w": torch.zeros(50)}, 12, 0), included=torch.ones(12, dtype=torch.bool))
    there = torch.zeros(10, 12, dtype=torch.bool)
    for t in range(10):
        there[t, drawn.participants(Clock(t, 0, 10, 1, 3, 10, in_turn=True))] = True
    assert there.sum(0).tolist() == [3] * 12
    assert not any((there[t : t + 3].sum(0) > 1).any() for t in range(8))


def test_canaries_belong_to_groups_that_take_turns() -> None:
    """3 of 10 clients from two groups: in the turns of its group, a canary takes part with probability .6."""
    drawn = dataclasses.replace(draw_canaries({"w": torch.zeros(50)}, 40, 0), included=torch.ones(40, dtype=torch.bool))
    there = torch.zeros(100, 40, dtype=torch.bool)
    for t in range(100):
        there[t, drawn.participants(Clock(t, 0, 100, 1, 3, 10, groups=2))] = True
    assert not there[0::2, 1::2].any() and not there[1::2, 0::2].any()
    assert float(there[0::2, 0::2].double().mean()) == pytest.approx(0.6, abs=0.04)
    assert float(there[1::2, 1::2].double().mean()) == pytest.approx(0.6, abs=0.04)


HUGE_NOISE = ("--clip-factor", "1e6", "--noise-factor", "1e6")


@pytest.mark.parametrize(
    ("defense", "options", "messages"),
    [
        ("fed_cdp_valid", (*HUGE_NOISE, "--learning-rate", "1e30"), ["not audited: the training diverged"]),
        ("fed_sdp_valid", HUGE_NOISE, ["audited at least 0 ", "9 of 30 updates were not finite and counted as zero"]),
    ],
)
def test_a_diverged_training_is_finished(defense, options, messages, monkeypatch, capsys, tmp_path) -> None:
    """Noise that exceeds single precision leaves nothing to audit; clients that diverge, not canaries, count as zero."""
    federation = ("--train-rounds", "4", "--clients", "10", "--clients-per-round", "2", "--local-iterations", "2")
    attack = ("--attack", "identification", "--victims", "2", "--candidates", "5", "--taps", "type-2")
    where = ("--dataset", "digits", "--canaries", "50", "--out", str(tmp_path / "run"))
    code, out, _ = called(monkeypatch, capsys, "run", "--defense", defense, *attack, *federation, *where, *options)
    assert code == 0
    assert all(message in " ".join(out.split()) for message in messages)
    assert (tmp_path / "run" / "rows.parquet").exists() and not (tmp_path / "run" / "parts").exists()


EXAMPLES = dataclasses.replace(SMALL, defense="fed_cdp_valid", local_iterations=5, batch=100)


def test_canary_examples_are_used_at_the_rate_of_their_client_s_examples() -> None:
    """Canary i belongs to client i modulo N; one that is left out is never used, and other lanes do not change the draws."""
    canaries = draw_canaries({"w": torch.zeros(3000)}, 3000, seed=1)
    clock, clients = Clock(3, 0, 10, 1, cohort=5, clients=20), torch.tensor([4, 7, 19])
    drawn_for = canaries.examples(clients, clock, 40, 0.25)
    used = torch.zeros(3000)
    for lane, client in enumerate(clients):
        used.index_add_(0, drawn_for.ids[lane], drawn_for.uses[lane].sum(0).float())
        alone = canaries.examples(clients[lane : lane + 1], clock, 40, 0.25)
        assert torch.equal(alone.uses[0], drawn_for.uses[lane][:, : alone.uses.shape[2]])
        assert not drawn_for.uses[lane][:, alone.uses.shape[2] :].any()
        assert set((alone.ids[0] % 20).tolist()) == {int(client)}
    theirs = torch.isin(torch.arange(3000) % 20, clients) & canaries.included
    assert (used[~theirs] == 0).all()
    assert float(used[theirs].mean()) == pytest.approx(10, rel=0.05)


def test_canary_examples_join_a_batch_as_members_with_a_weight() -> None:
    """A canary that a batch does not use has weight 0 and a gradient of zero."""
    canaries = draw_canaries({"w": torch.zeros(50)}, 40, seed=0)
    extra = canaries.examples(torch.tensor([0, 1]), Clock(0, 0, 1, 1, 2, 2), 1, 0.5)
    count = extra.ids.shape[1]
    signal, weights = extra.joined_to(Signal({"w": torch.ones(2, 3, 50)}), torch.ones(2, 3), 0)
    assert signal.grads["w"].shape == (2, 3 + count, 50)
    assert torch.equal(weights[:, 3:], extra.uses[:, 0].float())
    assert torch.equal(signal.grads["w"][:, 3:].abs().amax(2), FAR * weights[:, 3:])
    assert (signal.grads["w"][:, :3] == 1).all()


def test_scores_of_canary_examples_are_their_clipped_gradients() -> None:
    """With nearly no noise: each use adds rate C / (B K_t), in contrast to the rounds without the canary's client."""
    cell = prepare(dataclasses.replace(EXAMPLES, noise_factor=1e-6, train_rounds=8), None)
    (_, canaries), f = drawn(cell), cell.settings.federation
    scores, expected = trained(cell)[-1].canary_scores, torch.zeros(200, dtype=torch.float64)
    assert scores is not None
    for t in range(8):
        clients = draw_clients(f.clients, f.clients_per_round, cell.defense.cohorts, cell.settings.seed, t)
        extra = canaries.examples(clients, cell.defense.clock(f, t), 5, 100 / 400)
        expected.index_add_(0, extra.ids.flatten(), extra.uses.sum(1).flatten().double())
    norm = cell.defense.example[0].norm  # type: ignore[attr-defined]
    expected *= 0.75 * f.learning_rate * norm / (100 * f.clients_per_round)
    assert np.corrcoef(scores, expected)[0, 1] > 0.6
    assert float((scores / expected)[expected > 0].median()) == pytest.approx(1, rel=0.2)


def test_trainings_with_canary_examples_are_audited() -> None:
    """With the ledger's noise the bound is below the valid epsilon, and with a thousandth of it above."""
    request = dataclasses.replace(EXAMPLES, canaries=1000, noise_factor=2.0, train_rounds=10)
    ledger = prepare(request, None)
    assert 0.5 < valid(ledger) < 2
    sound = audited(ledger, ledger)
    assert sound.unit == "example"
    assert max(sound.lower_bound, sound.lower_bound_family or 0.0) <= valid(ledger)
    broken = audited(ledger, prepare(dataclasses.replace(request, noise_factor=0.002), None))
    assert max(broken.lower_bound, broken.lower_bound_family or 0.0) > valid(ledger)


def test_a_run_compares_its_canary_examples_with_the_epsilon_of_one_example(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    options = ["run", "--dataset", "cancer", "--defense", "fed_cdp_valid", "--attack", "cpl", "--iterations", "1"]
    options += ["--victims", "1", "--leak-batch", "1", "--candidates", "2", "--taps", "type-2", "--train-rounds", "2"]
    options += ["--local-iterations", "2", "--canaries", "50", "--device", "cpu", "--quiet", "--json"]
    found = {}
    for members in (1, 5):
        more = ["--examples-per-person", str(members), "--out", str(tmp_path / f"run{members}")]
        code, out, _ = called(monkeypatch, capsys, *options, *more)
        assert code == 0
        found[members] = json.loads(out)
    assert "valid" not in found[1]["audited"]
    assert found[5]["audited"].pop("valid") == found[1]["epsilon"]["valid"] < found[5]["epsilon"]["valid"]
    assert found[5]["audited"] == found[1]["audited"]


@pytest.mark.statistics
def test_audits_by_canary_examples_are_wrong_in_at_most_five_of_a_hundred() -> None:
    """40 trainings at the ledger's noise: at most 5 bounds are above the valid epsilon."""
    over = []
    for seed in range(40):
        cell = prepare(dataclasses.replace(EXAMPLES, seed=seed, canaries=400, train_rounds=3), None)
        audit = audited(cell, cell)
        over.append(max(audit.lower_bound, audit.lower_bound_family or 0.0) > valid(cell))
    assert sum(over) <= 5


def test_canary_examples_bring_data_of_their_own() -> None:
    """A part that compares the members with the examples must still see one example for each member."""
    canaries = draw_canaries({"w": torch.zeros(50)}, 40, seed=0)
    extra = canaries.examples(torch.tensor([0, 1]), Clock(0, 0, 1, 1, 2, 2), 1, 0.5)
    network = Network(torch.nn.Linear(5, 3), {})
    local = Local(network, torch.ones(2, 3, 5), torch.ones(2, 3, 3))
    signal, weights = extra.joined_to(Signal({"w": torch.ones(2, 3, 50)}, local=local), torch.ones(2, 3), 0)
    assert signal.local is not None
    assert signal.local.inputs.shape[1] == signal.local.targets.shape[1] == signal.members
    assert torch.equal(signal.local.inputs[:, :3], local.inputs)
    assert not signal.local.inputs[:, 3:].any()
    assert signal.local.weights is not None
    assert torch.equal(signal.local.weights, weights)


@pytest.mark.parametrize("defense", ["none", "mixup"])
def test_a_defense_without_an_epsilon_is_refused_for_that_reason(defense: str) -> None:
    with pytest.raises(InputError, match=r"has no valid epsilon to audit"):
        prepare(Request(dataset="digits", defense=defense, canaries=50), None)
