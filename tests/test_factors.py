"""Factors on a defense's noise and clips: what they reach, what they refuse, what is said of them."""

import dataclasses

import pytest

from leakbench.cell import Cell, Request
from leakbench.cell.accounting import cell_epsilon
from leakbench.cell.budget import prepare
from leakbench.cell.network import probe_of
from leakbench.defense import facts_at
from leakbench.errors import InputError
from leakbench.run.experiment import hand_out
from leakbench.types import Fact


def cell(**asked: object) -> Cell:
    return prepare(Request(**{"attack": "cpl", "dataset": "digits", "victims": 3, **asked}), None)  # type: ignore[arg-type]


def facts(some: Cell) -> list[Fact]:
    probe = probe_of(some.defense, some.data, some.settings)
    done = facts_at(some.defense, probe, some.defense.clock(probe.federation, 0))
    return [fact for station in done.values() for fact in station]


def valid(some: Cell) -> float:
    found = cell_epsilon(some.defense, some.data, some.settings, hand_out(some), None)
    assert found.valid is not None
    return found.valid


def test_half_the_noise_halves_every_deviation_and_costs_more() -> None:
    plain, half = cell(defense="fed_cdp_valid"), cell(defense="fed_cdp_valid", noise_factor=0.5)
    before, after = ([f.std for f in facts(some) if f.kind == "noise"] for some in (plain, half))
    assert before
    assert after == pytest.approx([std / 2 for std in before])
    assert valid(half) > valid(plain)
    assert half.hash != plain.hash
    assert half.names["defense"] == "fed_cdp_valid (noise x 0.5)"
    assert " " not in half.name


@pytest.mark.parametrize("name", ["fed_alpha_cdp_linear", "fed_alpha_cdp_staircase", "fed_alpha_cdp_cyclic"])
def test_a_factor_reaches_a_schedule_in_every_round(name: str) -> None:
    plain, half = cell(defense=name, train_rounds=4), cell(defense=name, train_rounds=4, noise_factor=0.5)
    now = plain.defense.clock(plain.settings.federation, 0)
    for round_number in range(4):
        clock = dataclasses.replace(now, round=round_number)
        before, after = (
            [
                t.multiplier(clock)
                for t in (*c.defense.example, *c.defense.batch, *c.defense.client)
                if hasattr(t, "multiplier")
            ]
            for c in (plain, half)
        )
        assert before and after == pytest.approx([each / 2 for each in before])


@pytest.mark.parametrize(
    "name", ["fed_cdp", "fed_alpha_cdp", "fed_sdp_server", "fed_cdp_valid", "fed_cdp_layers_valid", "adaclip"]
)
def test_a_wider_clip_widens_the_noise_that_is_calibrated_to_it_and_keeps_epsilon(name: str) -> None:
    """AdaClip's clip is of scaled coordinates and has no fixed norm to be widened."""
    if name == "adaclip":
        with pytest.raises(InputError, match="clip-factor: the clip of adaclip is no fixed norm"):
            cell(defense=name, clip_factor=2.0)
        return
    plain, wide = cell(defense=name), cell(defense=name, clip_factor=2.0)
    for kind, field in (("clip", "norm"), ("noise", "std")):
        before, after = ([getattr(f, field) for f in facts(some) if f.kind == kind] for some in (plain, wide))
        assert before
        assert after == pytest.approx([2 * number for number in before])
    found = [cell_epsilon(c.defense, c.data, c.settings, hand_out(c), None).claimed for c in (plain, wide)]
    assert found[0] == found[1]


def test_both_factors_together_are_said_and_the_paper_prints_nothing_of_them() -> None:
    both = cell(defense="fed_sdp_server", noise_factor=0.1, clip_factor=3)
    assert both.names["defense"] == "fed_sdp_server (noise x 0.1, clip x 3)"
    assert both.defense.printed == {}
    assert cell(defense="fed_sdp_server").defense.printed


def test_a_factor_of_one_changes_no_number() -> None:
    plain, same = cell(defense="fed_cdp"), cell(defense="fed_cdp", noise_factor=1.0, clip_factor=1.0)
    assert dataclasses.replace(same.defense, printed=plain.defense.printed) == plain.defense


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"noise_factor": 0.0}, "noise-factor: got 0.0, expected a finite number > 0"),
        ({"clip_factor": float("nan")}, "clip-factor: got nan, expected a finite number > 0"),
        ({"noise_factor": 2.0}, "noise-factor: none adds no noise"),
        ({"clip_factor": 2.0}, "clip-factor: none has no clip"),
        ({"noise_factor": 2.0, "defense": "priority_public_valid"}, "noise-factor: the noise of priority_public_valid"),
        ({"noise_factor": 2.0, "epsilon": 1.0, "defense": "fed_cdp_valid"}, "noise-factor: got --epsilon beside it"),
    ],
)
def test_what_no_factor_reaches_is_refused(asked: dict[str, object], said: str) -> None:
    with pytest.raises(InputError, match=said):
        cell(**asked)
