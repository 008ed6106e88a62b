"""Clients that take part by availability: which are drawn, and that no epsilon counts the draw as random."""

import pytest
import torch

from leakbench.cell import Request, resolve_cell
from leakbench.cell.accounting import cell_epsilon, ledger_of
from leakbench.cell.cell import Cell, hand_out
from leakbench.core.errors import InputError
from leakbench.data.availability import available_clients, check_availability, written_availability
from leakbench.data.recipe import Federation
from leakbench.federated.sampling import draw_clients


def cell(**fields: object) -> Cell:
    asked: dict[str, object] = {
        "dataset": "digits",
        "attack": "cpl",
        "taps": ("type-1",),
        "device": "cpu",
        "train_rounds": 4,
    }
    return resolve_cell(Request(**asked | fields), None)  # type: ignore[arg-type]


def test_a_beta_distribution_spreads_the_clients() -> None:
    """The mean share is A / (A + B); a client's own share is its probability, which differs from client to client."""
    taken = torch.stack([available_clients("beta:1,3", 2000, 0, t) for t in range(60)]).double()
    assert float(taken.mean()) == pytest.approx(0.25, abs=0.01)
    assert float(taken.mean(0).std()) == pytest.approx((1 * 3 / (16 * 5) + 0.2 * 0.6 / 60) ** 0.5, abs=0.02)


def test_a_day_has_24_rounds() -> None:
    """Half of the clients are available at any time, and each client at the same hours of every day."""
    taken = torch.stack([available_clients("diurnal:1", 3000, 0, t) for t in range(48)]).double()
    assert float((taken.mean(1) - 0.5).abs().max()) < 0.04
    hours = taken.reshape(2, 24, -1)
    same, other = (hours[0] * hours[1]).mean(), (hours[0] * hours[1].roll(12, 0)).mean()
    assert float(same) == pytest.approx(0.25 + 1 / 8, abs=0.01)
    assert float(other) == pytest.approx(0.25 - 1 / 8, abs=0.01)


@pytest.mark.parametrize("cohorts", ["fixed", "poisson", "in_turn"])
def test_only_available_clients_are_drawn(cohorts: str) -> None:
    available = torch.arange(20) % 3 == 0
    drawn = [draw_clients(20, 5, cohorts, 0, t, 1, available) for t in range(20)]
    assert all(bool(available[one].all()) for one in drawn)
    if cohorts == "fixed":
        assert {len(one) for one in drawn} == {5}
        assert draw_clients(20, 12, cohorts, 0, 0, 1, available).tolist() == torch.nonzero(available).flatten().tolist()


@pytest.mark.parametrize("defense", ["fed_sdp_valid", "fed_cdp_valid", "geyer_as_released"])
def test_no_epsilon_counts_the_draw_of_clients(defense: str) -> None:
    """The epsilon is that of a federation in which every client takes part in every round, or larger."""
    fields = {"defense": defense, "clients": 40, "clients_per_round": 10}
    uniform, by_day = cell(**fields), cell(**fields, availability="diurnal:0.8")
    every = cell(**fields | {"clients": 10})
    found = [cell_epsilon(c.defense, c.data, c.settings, hand_out(c), None) for c in (uniform, by_day, every)]
    if found[0].valid is None:
        assert found[1].valid is None
        return
    assert found[1].valid is not None and found[2].valid is not None
    assert found[1].valid > 1.2 * found[0].valid
    assert "no amplification by client sampling: availability is not uniform" in found[1].reason
    assert "availability" not in found[0].reason
    if defense == "fed_sdp_valid":
        assert found[1].valid >= found[2].valid * (1 - 1e-6)


def test_a_round_may_miss_clients() -> None:
    some = cell(availability="beta:1,3")
    schedule, _ = ledger_of(some.defense, some.data, some.settings, hand_out(some))
    assert schedule.by_availability and not schedule.complete and schedule.rate(5) == 1
    plain, _ = ledger_of(cell().defense, some.data, cell().settings, hand_out(some))
    assert not plain.by_availability and plain.complete


def test_the_default_keeps_the_identity() -> None:
    assert cell().hash == cell(availability="uniform").hash != cell(availability="diurnal:1").hash


def test_numbers_have_one_form() -> None:
    """The same distribution is the same cell, in whatever form its numbers are."""
    forms = {words: written_availability(words) for words in ("beta:1,2", "beta:1.0,2", "beta: 1e0 ,2.", "beta:01,2e0")}
    assert set(forms.values()) == {"beta:1,2"}
    assert [written_availability(w) for w in ("uniform", "beta:.5,1e20", "diurnal:0.80", "diurnal:0")] == [
        "uniform",
        "beta:0.5,100000000000000000000",
        "diurnal:0.8",
        "diurnal:0",
    ]
    hashes = {cell(availability=words).hash for words in forms}
    assert len(hashes) == 1 and cell(availability="beta:1,2.5").hash not in hashes


@pytest.mark.parametrize(
    "words", ["daily", "beta", "beta:1", "beta:0,1", "beta:a,b", "diurnal", "diurnal:2", "uniform:1", ""]
)
def test_other_words_are_refused(words: str) -> None:
    with pytest.raises(InputError, match=r"availability: got .*, expected uniform, beta:A,B"):
        check_availability(words)
    with pytest.raises(ValueError, match="availability"):
        Federation(3, 4, 20, availability=words)
