"""The names of leakage points."""

from __future__ import annotations

import pytest

from leakbench.core.leakage_points import POINT_NAMES, TAPS, listed, point_name


@pytest.mark.parametrize(
    ("tap", "name"),
    [
        ("type-2", "example gradient (type-2)"),
        ("type-1", "client update (type-1)"),
        ("type-0", "server-side update (type-0)"),
        ("global", "global update"),
        ("type-1@0", "client update (type-1) after 0 rounds"),
        ("type-1@1", "client update (type-1) after 1 round"),
        ("global@40", "global update after 40 rounds"),
        ("type-1@0+1+2", "client update (type-1) after 0, 1 and 2 rounds"),
        ("server", "server"),
        ("type-1@last", "type-1@last"),
    ],
)
def test_a_key_has_a_name(tap: str, name: str) -> None:
    assert point_name(tap) == name


def test_every_leakage_point_has_a_name() -> None:
    assert set(POINT_NAMES) == set(TAPS)


def test_names_are_listed() -> None:
    assert [listed(["a"]), listed(["a", "b"]), listed(["a", "b", "c"])] == ["a", "a and b", "a, b and c"]
