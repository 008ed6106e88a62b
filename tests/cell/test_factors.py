"""Factors on a defense's noise and clips: which numbers they scale, what they refuse, and the reports."""

import dataclasses
import math
import re
from pathlib import Path

import pytest
import yaml

from leakbench.cell import Cell, Request
from leakbench.cell.accounting import cell_curve, cell_epsilon
from leakbench.cell.budget import prepare
from leakbench.cell.cell import hand_out
from leakbench.cell.network import probe_of
from leakbench.core.errors import InputError
from leakbench.core.types import Fact
from leakbench.defense import facts_at


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


def test_half_the_noise_halves_every_deviation_and_raises_epsilon() -> None:
    plain, half = cell(defense="fed_cdp_valid"), cell(defense="fed_cdp_valid", noise_factor=0.5)
    before, after = ([f.std for f in facts(some) if f.kind == "noise"] for some in (plain, half))
    assert before
    assert after == pytest.approx([std / 2 for std in before])
    assert valid(half) > valid(plain)
    assert half.hash != plain.hash
    assert half.names["defense"] == "fed_cdp_valid (noise x 0.5)"
    assert " " not in half.name


@pytest.mark.parametrize("name", ["fed_alpha_cdp_linear", "fed_alpha_cdp_staircase", "fed_alpha_cdp_cyclic"])
def test_a_factor_scales_a_schedule_in_every_round(name: str) -> None:
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
    """AdaClip clips scaled coordinates and has no fixed norm that could be widened."""
    if name == "adaclip":
        with pytest.raises(InputError, match="clip-factor: the clip of defense 'adaclip' has no fixed norm"):
            cell(defense=name, clip_factor=2.0)
        return
    plain, wide = cell(defense=name), cell(defense=name, clip_factor=2.0)
    for kind, field in (("clip", "norm"), ("noise", "std")):
        before, after = ([getattr(f, field) for f in facts(some) if f.kind == kind] for some in (plain, wide))
        assert before
        assert after == pytest.approx([2 * number for number in before])
    found = [cell_epsilon(c.defense, c.data, c.settings, hand_out(c), None).claimed for c in (plain, wide)]
    assert found[0] == found[1]


def test_both_factors_are_reported_and_have_no_printed_epsilon() -> None:
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
        *[
            (
                {f"{what}_factor": factor},
                f"{what}-factor: got {re.escape(str(factor))}, expected a number from 1e-06 to 1e\\+06",
            )
            for what in ("noise", "clip")
            for factor in (1e-9, 1e9, 1e300, float("nan"), float("inf"), float("-inf"), 0.0, -1.0)
        ],
        ({"noise_factor": 2.0}, "noise-factor: defense 'none' adds no noise"),
        ({"clip_factor": 2.0}, "clip-factor: defense 'none' has no clip"),
        (
            {"noise_factor": 2.0, "defense": "priority_public_valid"},
            "noise-factor: the noise of defense 'priority_public_valid'",
        ),
        ({"noise_factor": 2.0, "epsilon": 1.0, "defense": "fed_cdp_valid"}, "noise-factor: got --epsilon too"),
    ],
)
def test_defenses_that_no_factor_scales_are_refused(asked: dict[str, object], said: str) -> None:
    with pytest.raises(InputError, match=said):
        cell(**asked)


@pytest.mark.parametrize("factor", [1e-6, 1e6])
def test_numbers_at_the_ends_of_the_range_are_finite(factor: float) -> None:
    for some in (cell(defense="fed_cdp", noise_factor=factor), cell(defense="fed_cdp", clip_factor=factor)):
        found = cell_epsilon(some.defense, some.data, some.settings, hand_out(some), None)
        curve = cell_curve(some.defense, some.data, some.settings, hand_out(some))
        assert found.valid is not None and math.isfinite(found.valid) and curve and all(map(math.isfinite, curve))


def test_very_little_noise_has_no_curve_of_epsilons(tmp_path: Path) -> None:
    own = {"title": "t", "cite": "c", "unit": "example"}
    steps = [{"clip_layers": {"norm": 4.0}}, {"gaussian_noise": {"multiplier": 1e-12, "to": "sum"}}]
    (tmp_path / "own.yaml").write_text(yaml.safe_dump({**own, "example": steps}))
    some = cell(defense=str(tmp_path / "own.yaml"))
    found = cell_epsilon(some.defense, some.data, some.settings, hand_out(some), None)
    assert found.valid is None and "no finite epsilon" in found.reason
    assert cell_curve(some.defense, some.data, some.settings, hand_out(some)) == []


def test_a_factor_that_leaves_single_precision_is_refused(tmp_path: Path) -> None:
    steps = [{"clip_layers": {"norm": 1e28}}, {"gaussian_noise": {"multiplier": 1.0, "to": "sum"}}]
    own = {"title": "t", "cite": "c", "unit": "example", "example": steps}
    (tmp_path / "own.yaml").write_text(yaml.safe_dump(own))
    with pytest.raises(InputError, match=r"1e\+06 times norm 1e\+28: expected a number between 1e-30 and 1e30"):
        cell(defense=str(tmp_path / "own.yaml"), clip_factor=1e6)
