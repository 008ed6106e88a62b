"""The option `examples_per_person`: epsilons, budgets, audits and limits of a cell."""

import dataclasses
from typing import Any

import pytest

import leakbench
from leakbench.auditing.cell import audit_cell
from leakbench.cell import hand_out
from leakbench.cell.accounting import cell_curve, cell_epsilon, schedule_of
from leakbench.cell.budget import plan, prepare
from leakbench.cell.network import probe_of
from leakbench.core.errors import InputError
from leakbench.core.request import Request, run_words


def planned(**fields: Any) -> Any:
    return plan(Request(**{"defense": "fed_cdp_valid", "dataset": "digits", **fields}))


def test_the_printed_unit_is_the_person() -> None:
    one, several = (leakbench.epsilon("fed_cdp_valid", dataset="digits", examples_per_person=k) for k in (1, 5))
    assert str(one).startswith("fed_cdp_valid on digits, 10 rounds, unit: one example, delta")
    assert str(several).startswith(
        "fed_cdp_valid on digits, 10 rounds, unit: one person with at most 5 examples at each of at most 2 clients, delta"
    )
    assert one.valid is not None
    assert several.valid is not None
    assert 5 * one.valid < several.valid < 7 * one.valid
    assert several.claimed == one.claimed


def test_an_epsilon_of_one_client_does_not_change() -> None:
    one, several = (leakbench.epsilon("fed_sdp_valid", dataset="digits", examples_per_person=k) for k in (1, 100))
    assert several.valid == one.valid
    assert "unit: one client" in str(several)


def test_a_person_has_no_more_examples_than_a_client() -> None:
    with pytest.raises(
        InputError, match="examples-per-person: got 101, more than the 100 examples that a client holds"
    ):
        planned(examples_per_person=101)
    with pytest.raises(InputError, match="examples-per-person: got 0, expected at least 1"):
        planned(examples_per_person=0)


def test_a_target_epsilon_is_that_of_the_person() -> None:
    cell = planned(examples_per_person=3, epsilon=2.0)
    found = cell_epsilon(cell.defense, cell.data, cell.settings, hand_out(cell), None)
    assert found.valid == pytest.approx(2.0, rel=2e-3)
    assert found.valid <= 2.0


def test_fewer_rounds_fit_the_budget_of_a_person() -> None:
    one, several = (planned(examples_per_person=k, stop_at_epsilon=0.4) for k in (1, 2))
    assert several.settings.stop_after < one.settings.stop_after


def test_the_number_is_part_of_a_cell_only_if_it_is_set() -> None:
    one, same, several = (
        prepare(Request(defense="fed_cdp_valid", dataset="digits", **fields), None)
        for fields in ({}, {"examples_per_person": 1}, {"examples_per_person": 5})
    )
    assert one.hash == same.hash != several.hash
    assert run_words(Request(examples_per_person=5), without=("device",))[-2:] == ["--examples-per-person", "5"]


def test_a_curve_is_drawn_for_one_example_only() -> None:
    for members, rounds in ((1, 10), (5, 0)):
        cell = planned(examples_per_person=members)
        assert len(cell_curve(cell.defense, cell.data, cell.settings, hand_out(cell))) == rounds


def test_the_limits_of_a_leak_are_those_of_one_example() -> None:
    cell = planned(examples_per_person=5)
    assert schedule_of(cell.defense, probe_of(cell.defense, cell.data, cell.settings), 1.0, 1).examples_per_person == 1


def test_an_audit_is_of_one_example_and_says_so() -> None:
    one, several = (audit_cell(planned(examples_per_person=k), 1e-5, 1000) for k in (1, 5))
    said = "the audit and its epsilons are for one example, not for a person with 5; "
    assert said in several.reason
    assert dataclasses.replace(several, reason=several.reason.replace(said, "")) == one
