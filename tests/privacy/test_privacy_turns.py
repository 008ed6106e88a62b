"""Clients that take turns: how often a unit takes part, and what every observer's epsilon is then."""

import dataclasses
import itertools
from pathlib import Path
from typing import Any

import pytest
import torch

from leakbench.core.errors import InputError
from leakbench.core.recipe import load
from leakbench.core.types import Fact
from leakbench.defense.recipe import Defense
from leakbench.federated.sampling import draw_clients
from leakbench.privacy.accountants import pld
from leakbench.privacy.epsilon import Epsilon
from leakbench.privacy.mechanism import Mechanism
from tests.privacy.test_privacy_epsilon import AT_CLIENT, CLIP, FED_CDP, FED_SDP, MNIST, ON_SUM
from tests.privacy.test_privacy_epsilon import valid as valid_of


def valid(facts: dict[str, tuple[Fact, ...]], unit: Any, **changes: Any) -> Epsilon:
    return valid_of(facts, unit, client_sampling="in_turn", **changes)


@pytest.mark.parametrize(("clients", "per_round"), [(12, 4), (10, 4), (7, 7), (5, 1), (9, 8)])
def test_a_client_takes_part_in_at_most_one_of_as_many_rounds_as_there_are_whole_cohorts(
    clients: int, per_round: int
) -> None:
    """All take part equally often, up to one, and wait for N / K_t - 1 rounds, rounded up or down."""
    rounds = 40
    drawn = [draw_clients(clients, per_round, "in_turn", 3, t).tolist() for t in range(rounds)]
    assert all(len(set(each)) == per_round and each == sorted(each) for each in drawn)
    schedule = dataclasses.replace(MNIST, clients=clients, clients_per_round=per_round, client_sampling="in_turn")
    for client in range(clients):
        where = [t for t, each in enumerate(drawn) if client in each]
        assert len(where) in {rounds * per_round // clients, -(-rounds * per_round // clients)}
        assert all(later - before >= clients // per_round for before, later in itertools.pairwise(where))
        # The ledger's count holds for any consecutive rounds.
        for first in range(rounds):
            for last in range(first + 1, rounds + 1):
                count = sum(first <= t < last for t in where)
                assert count <= schedule.most_participations("client", per_round, last - first)


def test_the_order_of_turns_is_random_and_the_same_in_all_rounds() -> None:
    first = draw_clients(100, 10, "in_turn", 0, 0)
    assert torch.equal(first, draw_clients(100, 10, "in_turn", 0, 10))
    assert not torch.equal(first, draw_clients(100, 10, "in_turn", 1, 0))
    assert first.tolist() != list(range(10))


def test_nothing_amplifies_for_a_client_that_takes_its_turn() -> None:
    """100 rounds of 100 of 1,000 clients: ten releases of noise 6 to every observer."""
    answer = valid(FED_SDP, "client")
    ten = pld((Mechanism(6.0, 1.0, 10),), 1e-5)
    assert answer.valid == answer.without_draw == pytest.approx(ten, rel=1e-9)
    assert answer.by_tap["type-0"].valid == pytest.approx(ten, rel=1e-9)
    assert (answer.q, answer.steps) == (1.0, 10)
    assert "100 rounds, in at most 10 of which the client takes its turn" in answer.reason
    assert "random" not in answer.reason
    # 101 rounds: some clients take part 11 times.
    assert valid(FED_SDP, "client", rounds=101).steps == 11


def test_the_noise_of_all_clients_adds_up_unless_some_may_fail() -> None:
    together = valid(AT_CLIENT, "client")
    assert together.sigma_effective == pytest.approx(60.0) and "honest" in together.reason
    failing = valid(AT_CLIENT, "client", dropout=0.1)
    assert failing.sigma_effective == pytest.approx(6.0) and "drop out" in failing.reason
    assert together.by_tap["type-1"].valid == pytest.approx(pld((Mechanism(6.0, 1.0, 10),), 1e-5), rel=1e-9)


def test_an_example_takes_part_as_often_as_its_holders() -> None:
    """One holder: ten updates of 100 Poisson batches with q = .01. Three: thirty, but at most one of two clients a round."""
    one = valid(FED_CDP, "example")
    assert one.valid == pytest.approx(pld((Mechanism(6.0, 0.01, 1000),), 1e-5), rel=1e-6)
    assert "takes part at most 10 times: clients take turns" in one.reason
    three = valid(FED_CDP, "example", copies=2.0, most_copies=3)
    assert three.valid == pytest.approx(pld((Mechanism(6.0, 0.01, 3000),), 1e-5), rel=1e-6)
    few = valid(FED_CDP, "example", clients=3, clients_per_round=2, rounds=3, copies=3.0, most_copies=3)
    assert few.steps == 6 * 100


def test_a_run_counts_at_most_the_turns() -> None:
    answer = valid({"server": (CLIP, ON_SUM)}, "client", largest={"client": 10})
    assert answer.realised == pytest.approx(answer.valid, rel=1e-9)
    uses = valid(FED_CDP, "example", largest={"example": 4, "uses": 5, "client": 4})
    assert uses.by_tap["type-1"].realised == pytest.approx(pld((Mechanism(6.0, 0.01, 400),), 1e-5), rel=1e-6)


def test_cohorts_that_grow_have_no_turns(tmp_path: Path) -> None:
    text = "title: x\ncite: x\nunit: client\ncohorts: in_turn\ncohort_growth: 2.0\n"
    (tmp_path / "own.yaml").write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match="cohort_growth: clients that take turns"):
        load(Defense, tmp_path / "own.yaml")
