"""A privacy budget: the noise that spends it, and the number of rounds that fit into it."""

import dataclasses
from pathlib import Path

import pandas as pd
import pytest
from probes import probe

from leakbench.cell import Cell, Request, identity
from leakbench.cell.accounting import cell_curve, cell_epsilon
from leakbench.cell.budget import prepare
from leakbench.cell.cell import hand_out
from leakbench.cell.factors import louder
from leakbench.core.errors import InputError
from leakbench.core.recipe import resolve
from leakbench.core.types import Clock
from leakbench.data.recipe import Federation
from leakbench.defense import Defense, phases
from leakbench.execute import execute
from leakbench.privacy.decay import Linear
from leakbench.privacy.ledger import first_rounds
from leakbench.storage.store import open_run


def cell(**asked: object) -> Cell:
    return prepare(Request(**{"attack": "cpl", "dataset": "digits", "victims": 3, **asked}), None)  # type: ignore[arg-type]


def valid(some: Cell) -> float:
    found = cell_epsilon(some.defense, some.data, some.settings, hand_out(some), None)
    assert found.valid is not None
    return found.valid


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "target"), [("fed_cdp_valid", 0.3), ("fed_sdp_client_valid", 8.0), ("fed_sdp_valid", 0.3)]
)
def test_noise_is_found_that_spends_the_target(name: str, target: float) -> None:
    """Stronger or weaker than the recipe's sigma of 6; reached from below, and part of the cell's identity."""
    plain, some = cell(defense=name), cell(defense=name, epsilon=target)
    assert 0.99 * target < valid(some) <= target
    assert some.hash != plain.hash


def test_all_noise_and_the_claim_are_scaled_by_one_factor() -> None:
    """A number and a schedule: 6 and 15 to 4.85, doubled."""
    flat = louder(resolve("defenses", Defense, "fed_cdp_valid")[1], 2.0)
    assert flat.batch[0].multiplier == 12.0  # type: ignore[attr-defined]
    assert flat.claim.noise_multiplier == 12.0  # type: ignore[attr-defined]
    falling = louder(resolve("defenses", Defense, "fed_alpha_cdp_linear_valid")[1], 2.0).batch[0]
    clock = Clock(7, 0, 10, 1)
    assert falling.multiplier(clock) == 2 * Linear()(clock)  # type: ignore[attr-defined]


@pytest.mark.slow
def test_training_stops_before_the_budget_is_passed(tmp_path: Path) -> None:
    """The trained rounds spend at most the budget, one more would exceed it; the run reports this."""
    whole = cell(defense="fed_sdp_valid")
    budget = valid(dataclasses.replace(whole, settings=dataclasses.replace(whole.settings, stop_after=4))) + 1e-6
    some = cell(defense="fed_sdp_valid", stop_at_epsilon=budget, attack="identification", taps=("type-1",))
    assert some.settings.stop_after == 4
    assert some.settings.federation.rounds == whole.settings.federation.rounds
    with open_run(tmp_path / "run", identity(some, "test")) as run:
        summary = execute(some, run, lambda phase, done, total: None).as_dict()
    assert len(pd.read_parquet(tmp_path / "run" / "rounds.parquet")) == 4
    assert summary["rounds"] == 4
    assert summary["notes"]["rounds"].startswith("stopped after 4 of 10")
    assert summary["epsilon"]["valid"] <= budget
    assert len(summary["epsilon"]["by_round"]) == 4


def test_a_budget_is_not_exceeded_by_a_small_amount() -> None:
    """A budget one thousandth below the cost of four rounds allows three."""
    whole = cell(defense="fed_sdp_valid")
    four = valid(dataclasses.replace(whole, settings=dataclasses.replace(whole.settings, stop_after=4)))
    assert cell(defense="fed_sdp_valid", stop_at_epsilon=0.999 * four).settings.stop_after == 3


def test_noise_that_no_factor_reaches_is_refused() -> None:
    """NbAFL's noise depends on its epsilon and C, not on a multiplier: the message must not say that the budget is unreachable."""
    with pytest.raises(InputError, match="follows other settings than a multiplier"):
        cell(defense="priority_public_valid", epsilon=1.0)


def test_noise_of_clients_that_drop_out_never_counts() -> None:
    """fed_sdp_client_valid with and without dropout: the headline and the curve count only a client's own noise."""
    sure, failing = cell(defense="fed_sdp_client_valid"), cell(defense="fed_sdp_client_valid", dropout=0.3)
    assert valid(failing) > valid(sure)
    curves = [cell_curve(c.defense, c.data, c.settings, hand_out(c)) for c in (sure, failing)]
    assert curves[1][-1] > curves[0][-1]
    assert curves[1][-1] >= valid(failing)
    secure = cell(defense="secure_aggregation_sdp_client", dropout=0.3)
    found = cell_epsilon(secure.defense, secure.data, secure.settings, hand_out(secure), None)
    assert "do not drop out" not in found.by_tap["type-0"].reason


def test_a_recipe_may_have_its_own_budget() -> None:
    """Geyer et al., Table 1: of 1,000 clients, 220 a round, delta at epsilon 8 stays under 1e-5 for 54 rounds."""
    some = cell(defense="geyer", clients=1000, clients_per_round=220, train_rounds=60)
    assert some.settings.stop_after == 54
    assert cell(defense="geyer", clients=1000, clients_per_round=220, train_rounds=50).settings.stop_after is None


@pytest.mark.slow
def test_the_last_leak_belongs_to_the_last_trained_round() -> None:
    asked = {"defense": "geyer", "clients": 1000, "clients_per_round": 220, "train_rounds": 60, "protocol": "live"}
    assert cell(**asked, leak_rounds=("0", "last")).settings.leak_rounds == (0, 54)
    with pytest.raises(InputError, match="leak-rounds: got 57"):
        cell(**asked, leak_rounds=("57",))


def test_cohorts_grow_and_the_ledger_counts_each_with_its_own_rate() -> None:
    """From K_t / 2 to 3 K_t / 2 over 10 rounds of 20: 10, 12, ... 28 clients."""
    grown = Defense(title="t", cite="c", unit="client", cohort_growth=Linear(0.5, 1.5))
    federation = Federation(
        rounds=10, batch=2, examples_per_client=20, clients=100, clients_per_round=20, local_iterations=1
    )
    assert [phase.clients_per_round for phase in phases(grown, probe(federation))] == list(range(10, 30, 2))
    assert grown.clock(federation, 9).cohort == 28
    few = dataclasses.replace(grown, cohort_growth=Linear(1e-6, 50.0))
    assert (few.clock(federation, 0).cohort, few.clock(federation, 9).cohort) == (1, 100)


def test_the_first_rounds_of_a_training() -> None:
    """Rounds of two blocks each, cut after three."""
    federation = Federation(
        rounds=5, batch=2, examples_per_client=20, clients=9, clients_per_round=3, local_iterations=4
    )
    falling = resolve("defenses", Defense, "fed_alpha_cdp_epsilon_linear_valid")[1]
    cut = first_rounds(phases(falling, probe(federation)), 3)
    assert sum(phase.rounds for phase in cut if phase.ends) == 3
    assert cut == phases(falling, probe(federation))[: len(cut)]


def test_the_curve_ends_near_the_epsilon() -> None:
    """Integer orders of Rényi divergence are a few hundredths looser than privacy losses."""
    some = cell(defense="fed_sdp_valid")
    curve = cell_curve(some.defense, some.data, some.settings, hand_out(some))
    assert len(curve) == 10
    assert curve == sorted(curve)
    assert valid(some) <= curve[-1] < 1.3 * valid(some)
    bare = cell(defense="none")
    assert cell_curve(bare.defense, bare.data, bare.settings, hand_out(bare)) == []


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"defense": "fed_alpha_cdp", "epsilon": 8.0}, "no valid epsilon to be set"),
        (
            {"defense": "none", "epsilon": 1e-9, "train_rounds": 0},
            "give --train-rounds 1 or more and choose a defense with",
        ),
        ({"defense": "fed_cdp_valid", "epsilon": 1e-9, "train_rounds": 0}, "; give --train-rounds 1 or more, or leave"),
        ({"defense": "fed_cdp_valid", "epsilon": -1.0}, "epsilon: got -1.0"),
        ({"defense": "fed_cdp_valid", "epsilon": float("nan")}, "epsilon: got nan"),
        ({"defense": "none", "stop_at_epsilon": 1.0}, "stop-at-epsilon: defense 'none' has no valid epsilon"),
        ({"defense": "fed_sdp_valid", "stop_at_epsilon": 1e-6}, "the first round alone"),
        ({"defense": "fed_sdp_valid", "stop_at_epsilon": 0.0}, "stop-at-epsilon: got 0.0"),
        ({"defense": "fed_sdp_valid", "stop_at_delta": 1e-5}, "got it without --stop-at-epsilon"),
        ({"defense": "fed_sdp_valid", "stop_at_epsilon": 1.0, "stop_at_delta": 1.5}, "stop-at-delta: got 1.5"),
    ],
)
def test_budgets_that_cannot_be_kept_are_refused(asked: dict[str, object], words: str) -> None:
    with pytest.raises(InputError, match=words):
        cell(**asked)
