"""Noise that is correlated over the rounds: its numbers, its memory, and the epsilon of a whole training."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors import safe_open
from torch import Tensor

import leakbench
from leakbench.auditing import over_rounds
from leakbench.auditing.verdict import Audit
from leakbench.cell import Request, probe_of
from leakbench.cell.accounting import cell_epsilon
from leakbench.cell.budget import plan, prepare
from leakbench.cell.cell import hand_out
from leakbench.core.errors import InputError
from leakbench.core.part import part
from leakbench.core.recipe import catalog_folder, load
from leakbench.core.rng import generator, generators, normal
from leakbench.core.types import Clock, Fact, Generators, Network, Parameters, Signal
from leakbench.data.dataset import Dataset
from leakbench.data.find import load_dataset
from leakbench.data.partition import Partition
from leakbench.data.recipe import Federation
from leakbench.defense import Defense, correlated
from leakbench.defense.clip import ClipWhole
from leakbench.defense.correlated import (
    BandedNoise,
    BandedToeplitz,
    BufferedToeplitz,
    CorrelatedNoise,
    Correlation,
    Independent,
    Trees,
)
from leakbench.federated.sampling import draw_clients
from leakbench.federated.simulate import train
from leakbench.limits.guards import guards
from leakbench.models import build, parameters
from leakbench.privacy.accountants import pld, rdp
from leakbench.privacy.claim import NoClaim
from leakbench.privacy.curve import epsilon_curve
from leakbench.privacy.epsilon import Epsilon, epsilon
from leakbench.privacy.ledger import Phase, Schedule
from leakbench.privacy.mechanism import Mechanism
from leakbench.privacy.participation import SINGLE, Participation
from tests.federated.test_federated import far, run

SIGMA, CLIP = 3.0, 2.0
EACH: tuple[Correlation, ...] = (Trees(), Trees(restarts=False), BandedToeplitz(3), BufferedToeplitz(2), Independent())


def at(index: int, rounds: int = 12, clients: int = 10, cohort: int = 3, turns: bool = True) -> Clock:
    return Clock(index, 0, rounds, 1, cohort, clients, in_turn=turns)


def update(members: int = 3, lanes: int = 1, memory: Parameters | None = None, clip: float = CLIP) -> Signal:
    grads = {"w": torch.zeros(lanes, members, 2, 3), "b": torch.zeros(lanes, members, 4)}
    return Signal(grads, sensitivity=torch.full((lanes,), clip), memory=memory or {})


def training(part: CorrelatedNoise, rounds: int = 12, **federation: object) -> Iterator[tuple[Signal, Parameters]]:
    """Yield (the signal after each round, the independent noise that it drew)."""
    memory: Parameters = {}
    for t in range(rounds):
        rngs = generators(5, "server noise", [(t,)])
        drawn = {name: normal(g, rngs, 1) for name, g in update().grads.items()}
        after = part(update(memory=memory), at(t, rounds, **federation), generators(5, "server noise", [(t,)]))  # type: ignore[arg-type]
        memory = {name: m[0, 0][None, None] for name, m in after.mean(3).memory.items()}
        yield after, drawn


def response(part: CorrelatedNoise, rounds: int, **federation: object) -> NDArray[np.float64]:
    """Return M (T, T) of the noise M z on the sums, from the noise of a training by least squares over its coordinates."""
    seen = list(training(part, rounds, **federation))
    noise, drawn = (
        torch.stack([torch.cat([each[n].flatten() for n in ("w", "b")]) for each in several]).double().numpy()
        for several in ([{n: 3 * g.mean(1) for n, g in s.grads.items()} for s, _ in seen], [d for _, d in seen])
    )
    return np.linalg.lstsq(drawn.T, noise.T, rcond=None)[0].T


@pytest.mark.parametrize("correlation", EACH)
@pytest.mark.parametrize(("clients", "cohort"), [(10, 3), (6, 3), (9, 2)])
def test_all_rounds_protect_each_client_as_much_as_one_gaussian_release(
    correlation: Correlation, clients: int, cohort: int
) -> None:
    """The distance of two trainings, with and without a client, in units of the noise that was really added.

    For releases M z + u, with z standard normal, it is |M^-1 u|. Each client adds S in the rounds of its turns; the worst sign
    of each turn is tried too. Exact for the matrices whose sensitivity is, and never more than 1 / sigma.
    """
    rounds = 8
    matrix = response(CorrelatedNoise(SIGMA, correlation), rounds, clients=clients, cohort=cohort)
    assert np.allclose(np.triu(matrix, 1), 0, atol=1e-4)
    drawn = [set(draw_clients(clients, cohort, "in_turn", 1, t).tolist()) for t in range(rounds)]
    distances = []
    for client in range(clients):
        where = [t for t in range(rounds) if client in drawn[t]]
        for signs in np.ndindex(*[2] * len(where)):
            u = np.zeros(rounds)
            u[where] = CLIP * (1 - 2 * np.array(signs))
            distances.append(np.linalg.norm(np.linalg.solve(matrix, u)))
    assert max(distances) <= 1 / SIGMA * (1 + 1e-4)
    if correlation != Trees(restarts=False):
        assert max(distances) > 0.85 / SIGMA


@pytest.mark.parametrize("correlation", EACH)
def test_the_noise_of_a_round_is_that_of_the_matrix(correlation: Correlation) -> None:
    """M = C^-1 times multiplier, bound and sensitivity; the fact states the deviation of this round's noise."""
    part, rounds = CorrelatedNoise(SIGMA, correlation), 8
    found, sensitivity, _ = correlated._made(correlation, rounds, correlated.Participation(3, math.ceil(24 / 10)))
    expected = np.linalg.inv(found.matrix()) * SIGMA * CLIP * sensitivity
    np.testing.assert_allclose(response(part, rounds, clients=10, cohort=3), expected, atol=2e-4)
    for (after, _), row in zip(training(part, rounds, clients=10, cohort=3), expected, strict=True):
        (fact,) = after.facts
        assert (fact.kind, fact.each, fact.training, fact.separation) == ("noise", False, SIGMA * CLIP, 3)
        assert fact.std == pytest.approx(np.linalg.norm(row), rel=1e-6)


@pytest.mark.parametrize("correlation", EACH)
def test_the_noise_of_the_sums_does_not_depend_on_the_numbers_of_members(correlation: Correlation) -> None:
    """Clients drop out, cohorts are random, and canaries join: the sum of m updates is m times the mean."""
    part, counts = CorrelatedNoise(SIGMA, correlation), (3, 1, 5, 2, 4, 1)
    sums: list[list[Tensor]] = []
    for members in ((3,) * len(counts), counts):
        memory: Parameters = {}
        sums.append([])
        for t, m in enumerate(members):
            after = part(update(m, memory=memory), at(t, 6), generators(5, "server noise", [(t,)]))
            memory = {name: kept[0, 0][None, None] for name, kept in after.mean(3).memory.items()}
            sums[-1].append(torch.cat([m * g.mean(1).flatten() for g in after.grads.values()]))
    for same, changed in zip(*sums, strict=True):
        torch.testing.assert_close(changed, same, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("correlation", EACH)
@pytest.mark.parametrize("index", [0, 5])
def test_one_round_by_itself_has_the_deviation_of_its_row(correlation: Correlation, index: int) -> None:
    """A leak shows one round to attackers of many victims, without the noise of earlier rounds."""
    part, lanes = CorrelatedNoise(SIGMA, correlation), 400
    after = part(update(members=1, lanes=lanes), at(index), generators(0, "n", [(i,) for i in range(lanes)]))
    (fact,) = after.facts
    values = torch.cat([g.flatten() for g in after.grads.values()])
    assert float(values.std()) == pytest.approx(fact.std, rel=0.04)
    more = part(update(members=1), at(99), generators(0, "n", [(0,)]))  # The finished model may leak once more.
    assert more.facts[0].std == part(update(members=1), at(11), None).facts[0].std


def test_noise_on_the_mean_of_several_updates_and_of_larger_clips() -> None:
    (one,), (two,), (wide,) = (
        [float(next(iter(s.grads.values()))[0, 0, 0, 0])]
        for s in (
            CorrelatedNoise(SIGMA)(update(), at(0), generators(0, "n", [(0,)])),
            CorrelatedNoise(2 * SIGMA)(update(), at(0), generators(0, "n", [(0,)])),
            CorrelatedNoise(SIGMA)(update(clip=3 * CLIP), at(0), generators(0, "n", [(0,)])),
        )
    )
    assert two == pytest.approx(2 * one) and wide == pytest.approx(3 * one)


def test_without_generators_nothing_is_added() -> None:
    after = CorrelatedNoise(SIGMA)(update(), at(3), None)
    assert all(float(g.abs().max()) == 0 for g in after.grads.values())


def test_noise_without_a_clip_is_refused() -> None:
    with pytest.raises(InputError, match="correlated_noise: no clip before it"):
        CorrelatedNoise(SIGMA)(dataclasses.replace(update(), sensitivity=None), at(0), None)


def test_clients_that_are_drawn_may_take_part_in_every_round() -> None:
    """Independent noise for eight participations: sqrt(8) times that for one."""
    part = CorrelatedNoise(SIGMA, Independent())
    drawn, turns = (part(update(), at(0, 8, 24, 3, turns), None).facts[0] for turns in (False, True))
    assert drawn.std == pytest.approx(math.sqrt(8) * SIGMA * CLIP) and drawn.separation == 1
    assert turns.std == pytest.approx(SIGMA * CLIP) and turns.separation == 8
    assert drawn.training == turns.training == SIGMA * CLIP


# In a training


@part
class Spy:
    """Record the memory that reaches a client, and change nothing."""

    def __call__(self, signal: Signal, clock: Clock, rngs: Generators | None) -> Signal:
        SEEN.append(sorted(signal.memory))
        return signal.replace(signal.grads, signal.sensitivity, Fact("clip", norm=math.inf))


SEEN: list[list[str]] = []


@pytest.mark.parametrize("name", ["dp_ftrl", "dp_ftrl_banded", "dp_ftrl_buffered", "dp_ftrl_banded_sampled"])
def test_a_resumed_training_has_the_same_noise_and_clients_never_see_it(name: str) -> None:
    defense = load(Defense, catalog_folder("defenses") / f"{name}.yaml")
    defense = dataclasses.replace(defense, client=(Spy(),))
    SEEN.clear()
    whole, resumed = run(defense, 5), run(defense, 5, start_after=2)
    assert far(whole[-1], resumed[-1]) == 0.0
    assert far(run(defense, 5, seed=1)[-1], whole[-1]) > 0.1
    assert SEEN and not any(SEEN)


def test_a_training_adds_the_noise_of_the_matrix() -> None:
    """All updates are clipped to nothing: what is left of the weights' path is C^-1 z."""
    noise = CorrelatedNoise(1e12, BandedToeplitz(3))
    defense = Defense(title="t", cite="c", unit="client", cohorts="in_turn", server=(ClipWhole(1e-12), noise))
    path = run(defense, 6)
    steps = torch.stack([torch.cat([(b[n] - a[n]).flatten() for n in a]) for a, b in itertools.pairwise(path)]).double()
    inverse = np.linalg.inv(BandedToeplitz(3)(6, Participation(2, 3)).matrix())
    covariance = inverse @ inverse.T
    expected = covariance / np.sqrt(np.outer(np.diag(covariance), np.diag(covariance)))
    np.testing.assert_allclose(np.corrcoef(steps.numpy()), expected[1:, 1:], atol=0.02)


def test_a_training_samples_its_groups_in_turn_and_adds_the_noise_of_their_bands() -> None:
    """One of 6 clients a round from 4 groups: in every fourth round q = 4/6; the path of the weights is C^-1 z."""
    defense = Defense(
        title="t",
        cite="c",
        unit="client",
        cohorts="poisson",
        cohort_groups=4,
        server=(ClipWhole(1e-12), BandedNoise(1e12)),
    )
    rounds = list(train(*small_task(), SMALL, defense, 0))
    often = torch.stack([torch.zeros(6, dtype=torch.int64), *(r.counts.rounds for r in rounds)]).diff(dim=0)
    groups = torch.stack([often[g::4].sum(0) > 0 for g in range(4)])
    assert groups.sum(0).tolist() == [1] * 6 and sorted(groups.sum(1).tolist()) == [1, 1, 2, 2]
    assert often.max() == 1 and 10 <= often.sum() <= 30  # 20 are expected.
    path = torch.stack([torch.cat([p.flatten() for p in r.parameters.values()]) for r in rounds]).double()
    steps = path.diff(dim=0).numpy()
    made = BandedToeplitz(4)(len(rounds), SINGLE)
    inverse = np.linalg.inv(made.matrix()) * made.sensitivity(SINGLE).value
    expected = (inverse @ inverse.T)[1:, 1:] * (1e12 * 1e-12) ** 2
    np.testing.assert_allclose(np.cov(steps), expected, atol=0.1)


SMALL = Federation(20, batch=4, examples_per_client=20, clients=6, clients_per_round=1, local_iterations=1)


def small_task() -> tuple[Network, Dataset, Partition]:
    _, recipe, digits = load_dataset("digits")
    model = build("mlp", digits.shape, digits.classes, generator(0, "model"))
    partition = recipe.federation.partition(digits.train_targets, 6, 20, generator(0, "partition"))
    return Network(model, parameters(model)), digits, partition


@pytest.mark.parametrize("groups", [1, 3])
def test_the_noise_of_groups_is_that_of_one_round_of_a_client(groups: int) -> None:
    """M = C^-1 times multiplier, bound and the norm of a column, with one band for each group."""
    part, rounds, memory = BandedNoise(SIGMA), 8, Parameters()
    made = BandedToeplitz(groups)(rounds, SINGLE)
    deviation = SIGMA * CLIP * np.linalg.norm(made.matrix()[:, 0])
    for t in range(rounds):
        clock = Clock(t, 0, rounds, 1, 3, 10, groups=groups)
        after = part(update(lanes=1, memory=memory), clock, generators(5, "server noise", [(t,)]))
        memory = {name: m[0, 0][None, None] for name, m in after.mean(3).memory.items()}
        (fact,) = after.facts
        assert (fact.kind, fact.training, fact.participation, fact.separation) == ("noise", 0, SIGMA * CLIP, groups)
        assert fact.std == pytest.approx(deviation * made.round_deviations()[t], rel=1e-6)
    assert len(memory) == 2 and all(m.shape[2] == groups - 1 for m in memory.values())
    with pytest.raises(InputError, match="banded_noise: no clip before it"):
        part(dataclasses.replace(update(), sensitivity=None), at(0), None)


@pytest.mark.parametrize("reverse", [False, True])
def test_a_defense_has_one_noise_over_the_rounds(reverse: bool) -> None:
    """Each accounts for the whole training by itself, and the epsilon of both would count noise that the other takes back."""
    both = (CorrelatedNoise(2.0, BandedToeplitz(4)), BandedNoise(0.001))
    server = (ClipWhole(1.0), *(both[::-1] if reverse else both))
    with pytest.raises(
        (InputError, ValueError), match=r"server: got .*_noise and .*_noise, whose noise is that of a whole"
    ):
        Defense(title="t", cite="c", unit="client", cohorts="poisson", cohort_groups=4, server=server)


def test_two_noises_over_the_rounds_would_not_take_back_each_others_noise() -> None:
    """Each remembers its own; that of `correlated_noise` has the name of stored runs."""
    clock = Clock(0, 0, 8, 1, 3, 10, groups=3)
    first = CorrelatedNoise(SIGMA, BandedToeplitz(3))(update(), clock, generators(5, "server noise", [(0,)]))
    both = BandedNoise(SIGMA)(first, clock, generators(5, "server noise", [(0,)]))
    assert set(first.memory) == {"server.noise.w", "server.noise.b"}
    assert set(both.memory) == {*first.memory, "server.banded_noise.w", "server.banded_noise.b"}
    for name, value in first.memory.items():
        assert torch.equal(both.memory[name], value)


def test_an_aborted_round_would_take_its_noise_along() -> None:
    with pytest.raises((InputError, ValueError), match="on_dropout: a round that is aborted"):
        Defense(title="t", cite="c", unit="client", server=(ClipWhole(1.0), CorrelatedNoise(1.0)), on_dropout="abort")


# The ledger

SCHEDULE = Schedule(
    clients=100,
    clients_per_round=10,
    rounds=30,
    local_iterations=2,
    batch=5,
    examples_per_client=50,
    copies=1.0,
    most_copies=1,
    client_sampling="in_turn",
    batch_sampling="fixed",
    tensors=2,
)
BOUND = Fact("clip", norm=2.0)
NOISE = Fact("noise", std=50.0, training=6.0, separation=10)


def answer(*rounds: tuple[Fact, ...], unit: str = "client", **changes: object) -> Epsilon:
    """Return the epsilon of server facts, one or more for equal parts of the training."""
    schedule = dataclasses.replace(SCHEDULE, **changes)  # type: ignore[arg-type]
    each = schedule.rounds // len(rounds)
    phases = [Phase({"server": facts}, each, 2, True, schedule.clients_per_round) for facts in rounds]
    return epsilon(phases, unit, NoClaim(reason="not asked"), schedule, 1e-5)  # type: ignore[arg-type]


def test_a_whole_training_is_one_release() -> None:
    """Noise of 50 against a bound of 2 in each round; together as much as noise of 6 once."""
    found = answer((BOUND, NOISE))
    once = pld((Mechanism(3.0, 1.0, 1),), 1e-5)
    assert found.valid == found.without_draw == pytest.approx(once)
    assert (found.steps, found.q, found.sigma_effective) == (1, 1.0, 3.0)
    assert found.by_tap["type-0"].valid == pytest.approx(once)
    assert "all 30 releases together" in found.reason and "at most once in any 10 consecutive rounds" in found.reason
    assert "a server that reads" in found.by_tap["type-0"].reason
    for tap in ("type-1", "type-2"):
        assert found.by_tap[tap].reason.startswith("none: trusts the server")
    # The noise of a round may differ.
    several = answer((BOUND, NOISE), (BOUND, dataclasses.replace(NOISE, std=70.0)))
    assert several.valid == pytest.approx(once)
    assert answer((BOUND, NOISE), largest={"client": 3}).realised == pytest.approx(once)


@pytest.mark.parametrize(
    ("rounds", "changes", "why"),
    [
        (((BOUND, NOISE),), {"client_sampling": "fixed"}, "these may take part more often"),
        (((BOUND, NOISE),), {"clients_per_round": 11}, "these may take part more often"),
        (((BOUND, NOISE), (BOUND, Fact("noise", std=50.0))), {}, "round 16 has no noise that is correlated"),
        (((BOUND, NOISE), (BOUND, dataclasses.replace(NOISE, training=8.0))), {}, "changes"),
        # A larger bound with as much more noise.
        (
            ((BOUND, NOISE), (Fact("clip", norm=4.0), dataclasses.replace(NOISE, training=12.0))),
            {},
            "changes",
        ),
        (((NOISE,),), {}, "noise without a clip"),
        (((BOUND, NOISE),), {"unit": "example"}, "not to one example"),
    ],
)
def test_reasons_for_no_epsilon(rounds: tuple[tuple[Fact, ...], ...], changes: dict[str, object], why: str) -> None:
    found = answer(*rounds, **changes)  # type: ignore[arg-type]
    assert found.valid is None and why in found.reason, found.reason
    assert found.by_tap["type-0"].valid is None


# In a run


def test_the_epsilon_of_the_first_rounds_is_that_of_the_first_turns() -> None:
    """Correlated noise counts whole from the first round on; independent noise once in the first 10 rounds of 30."""
    phases = [Phase({"server": (BOUND, NOISE)}, 30, 2, True, 10)]
    curve = epsilon_curve(phases, "client", SCHEDULE)
    assert curve.shape == (30,) and (curve == curve[0]).all()
    assert curve[0] == pytest.approx(rdp((Mechanism(3.0, 1.0, 1),), 1e-5), rel=1e-2)
    alone = epsilon_curve([Phase({"server": (BOUND, Fact("noise", std=6.0))}, 30, 2, True, 10)], "client", SCHEDULE)
    for first, turns in ((0, 1), (9, 1), (10, 2), (19, 2), (20, 3), (29, 3)):
        assert alone[first] == pytest.approx(rdp((Mechanism(3.0, 1.0, turns),), 1e-5), rel=1e-2)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("ftrl") / "run"
    small = {
        "train_rounds": 4,
        "clients": 10,
        "clients_per_round": 2,
        "local_iterations": 1,
        "victims": 2,
        "candidates": 5,
    }
    more = {
        "taps": ("type-0",),
        "attack": "identification",
        "knows": "defense",
        "protocol": "live",
        "leak_rounds": (2,),
    }
    leakbench.run(dataset="digits", defense="dp_ftrl", **small, **more, out=home, quiet=True)
    return home


def test_no_file_of_a_finished_run_has_the_noise_of_the_server(finished: Path) -> None:
    files = sorted(finished.rglob("*.safetensors"))
    assert any(path.name == "model.safetensors" for path in files)
    for path in files:
        with safe_open(path, "pt") as held:
            assert not [name for name in held.keys() if "server." in name], path  # noqa: SIM118 - it is not a dict


def test_a_leak_behind_correlated_noise_has_a_bound(finished: Path) -> None:
    summary = json.loads((finished / "manifest.json").read_text(encoding="utf-8"))["summary"]
    (tap,) = summary["taps"].values()
    assert tap["identified_bound"] is not None and tap["identified_bound"] < 1


def test_leaks_of_several_rounds_are_not_joined() -> None:
    asked = Request(
        dataset="digits",
        defense="dp_ftrl",
        victims=2,
        candidates=5,
        protocol="live",
        leak_rounds=("1", "2"),
        join_rounds=True,
        taps=("type-0",),
    )
    with pytest.raises(InputError, match="join-rounds: correlated_noise correlates"):
        plan(asked, None)


@pytest.mark.parametrize("name", ["dp_ftrl", "dp_ftrl_banded", "dp_ftrl_buffered", "dp_ftrl_banded_sampled"])
def test_an_audit_plays_whole_trainings(name: str) -> None:
    """Most of the valid epsilon is found, and not more."""
    found = leakbench.audit(name, dataset="digits", clients_per_round=4, trials=100_000)
    assert found.verdict == "holds" and found.valid is not None and found.lower_bound_family is not None
    if name != "dp_ftrl_banded_sampled":
        assert found.valid == pytest.approx(epsilon_of_one(6.0), rel=1e-3)
    assert 0.7 * found.valid < found.lower_bound_family <= found.valid
    assert "all values are for the whole run" in found.reason and "drew the noise of all rounds" in found.reason


def test_the_noise_of_groups_is_set_by_an_epsilon_and_bounds_a_leak() -> None:
    """The multiplier for epsilon 2; a leak of one round is bounded by the noise of one round of a client."""
    asked = Request(defense="dp_ftrl_banded_sampled", dataset="digits", clients_per_round=4, epsilon=2.0)
    cell = prepare(asked, None)
    found = cell_epsilon(cell.defense, cell.data, cell.settings, hand_out(cell), None)
    assert found.valid == pytest.approx(2.0, rel=2e-3) and found.valid <= 2.0
    (_, noise) = cell.defense.server
    bounds = guards(cell, probe_of(cell.defense, cell.data, cell.settings).network, 0, hand_out(cell))
    assert isinstance(noise, BandedNoise) and bounds["type-0"].sigma == pytest.approx(noise.multiplier)
    assert bounds["type-1"].sigma is None


def test_a_leak_behind_groups_and_correlated_noise_has_a_bound() -> None:
    """In one round by itself a client takes part once, whatever the distance of its rounds is."""
    noise = CorrelatedNoise(6.0)
    server = (ClipWhole(4.0), noise)
    grouped = Defense(title="t", cite="c", unit="client", cohorts="poisson", cohort_groups=4, server=server)
    cell = prepare(Request(defense="dp_ftrl_banded_sampled", dataset="digits", clients_per_round=4), None)
    cell = dataclasses.replace(cell, defense=grouped)
    bounds = guards(cell, probe_of(cell.defense, cell.data, cell.settings).network, 3, hand_out(cell))
    assert bounds["type-0"].sigma == pytest.approx(6.0), bounds["type-0"].reason


def test_an_audit_ends_with_the_training() -> None:
    """A budget stops after some of ten rounds, of which five could have a client of the first of two groups."""
    asked = {"dataset": "digits", "clients_per_round": 8, "trials": 50_000}
    found = leakbench.audit("dp_ftrl_banded_sampled", stop_at_epsilon=1.0, **asked)  # type: ignore[arg-type]
    assert found.verdict == "holds" and found.valid is not None and found.valid <= 1.0
    assert "3 releases at q=0.8" in found.reason


def test_an_audit_finds_rounds_that_share_noise_they_must_not_share(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten bands behind four groups: the ledger trusts the fact, the trials show more."""
    monkeypatch.setattr(correlated, "BandedToeplitz", lambda bands: BandedToeplitz(10))
    found = leakbench.audit("dp_ftrl_banded_sampled", dataset="digits", clients_per_round=5, trials=300_000)
    assert found.verdict == "violated" and "more than the valid" in found.reason


def audited(name: str = "dp_ftrl_banded_sampled", **changes: object) -> Audit:
    return leakbench.audit(name, dataset="digits", **{"clients_per_round": 4, "trials": 100_000, **changes})  # type: ignore[arg-type]


def everyone(clients: int, per_round: int, cohorts: str, seed: int, index: int, groups: int = 1) -> Tensor:
    return torch.arange(clients)


def without_groups(clients: int, per_round: int, cohorts: str, seed: int, index: int, groups: int = 1) -> Tensor:
    return draw_clients(clients, per_round * groups, cohorts, seed, index)


@pytest.mark.parametrize(
    ("name", "draw"),
    [("dp_ftrl", everyone), ("dp_ftrl_banded_sampled", everyone), ("dp_ftrl_banded_sampled", without_groups)],
)
def test_an_audit_finds_draws_of_clients_that_do_not_wait_for_their_turn(
    name: str, draw: Callable[..., Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ledger trusts the schedule; the trials take the rounds of a client from the draw itself."""
    monkeypatch.setattr(over_rounds, "draw_clients", draw)
    found = audited(name)
    assert found.verdict == "violated" and "more than the valid" in found.reason
    assert found.lower_bound_family is not None and found.lower_bound_family > 1.5 * found.valid  # type: ignore[operator]


def test_an_audit_plays_the_draws_of_the_federation(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every kind of draw that the noise counts on comes from `draw_clients`, with the rates of the federation."""
    seen: list[tuple[float, str, int]] = []

    def spy(clients: int, per_round: int, cohorts: str, seed: int, index: int, groups: int = 1) -> Tensor:
        seen.append((per_round / clients, cohorts, groups))
        return draw_clients(clients, per_round, cohorts, seed, index, groups)

    monkeypatch.setattr(over_rounds, "draw_clients", spy)
    found = audited()
    assert set(seen) == {(0.2, "poisson", 4)} and len(seen) == 10
    assert "its draw of cohorts chose the rounds of the client" in found.reason
    seen.clear()
    assert "draw of cohorts" not in audited("dp_ftrl").reason
    assert set(seen) == {(0.2, "in_turn", 1)} and len(seen) == 10


def test_an_audit_plays_the_group_whose_rounds_are_protected_the_least(monkeypatch: pytest.MonkeyPatch) -> None:
    """A third of the noise in one round, which is not the first group's and not among those that are checked by themselves."""
    honest = correlated._added

    def added(s: Signal, c: Clock, r: Generators | None, deviation: Tensor, *rest: object) -> Signal:
        return honest(s, c, r, deviation / (3 if c.round == 6 else 1), *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(correlated, "_added", added)
    found = audited()
    assert found.verdict == "violated" and "more than the valid" in found.reason


@pytest.mark.parametrize("name", ["dp_ftrl", "dp_ftrl_banded", "dp_ftrl_banded_sampled"])
def test_an_audit_measures_the_noise_that_the_part_states_for_the_round(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tenth too little is far above the multiplier of the training, but not what the part states for one round."""
    honest = correlated._added

    def added(s: Signal, c: Clock, r: Generators | None, deviation: Tensor, *rest: object) -> Signal:
        return honest(s, c, r, 0.9 * deviation, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(correlated, "_added", added)
    found = audited(name, trials=1000)
    assert found.verdict == "violated" and "was measured where the ledger has" in found.reason
    assert found.sigma_measured is not None and found.sigma_measured > 6


def test_an_audit_of_examples_plays_no_noise_of_the_server(tmp_path: Path) -> None:
    """The noise over the rounds protects no example; that on the sums of batches does."""
    (tmp_path / "own.yaml").write_text(
        "title: t\ncite: c\nunit: example\ncohorts: in_turn\nbatches: poisson\nexample: [{clip_whole: {norm: 4.0}}]\n"
        "batch: [{gaussian_noise: {multiplier: 6.0, to: sum}}]\n"
        "server: [{clip_whole: {norm: 4.0}}, {correlated_noise: {multiplier: 6.0}}]\n",
        encoding="utf-8",
    )
    found = audited(str(tmp_path / "own.yaml"), clients_per_round=20)
    assert found.verdict == "holds" and "drew the noise of all rounds" not in found.reason
    assert found.sigma_measured == pytest.approx(6.0, rel=0.02)


def test_an_audit_without_a_guarantee_is_one_of_one_round(tmp_path: Path) -> None:
    recipe = "title: t\ncite: c\nunit: client\ncohorts: in_turn\nserver: [clip_median, {correlated_noise: {multiplier: 6.0}}]\n"
    (tmp_path / "own.yaml").write_text(recipe, encoding="utf-8")
    found = leakbench.audit(str(tmp_path / "own.yaml"), dataset="digits", trials=100)
    assert found.verdict == "no guarantee" and "what is audited is one round by itself" in found.reason


def epsilon_of_one(sigma: float) -> float:
    return pld((Mechanism(sigma, 1.0, 1),), 1e-5)
