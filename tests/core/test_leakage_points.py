"""The names of leakage points."""

from __future__ import annotations

import pytest

from leakbench.core.leakage_points import POINT_NAMES, TAPS, LeakagePoint, listed, point_name


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


@pytest.mark.parametrize(
    ("point", "key", "file", "phase", "tag"),
    [
        (LeakagePoint("type-1"), "type-1", "type-1.round0", "attack type-1", "type-1"),
        (LeakagePoint("global", (5,)), "global@5", "global.round5", "attack global at round 5", "global/round5"),
        (
            LeakagePoint("type-0", (0, 12)),
            "type-0@0+12",
            "type-0.round12",
            "attack type-0 at round 12",
            "type-0/round0+12",
        ),
    ],
)
def test_a_point_is_spelled_for_each_place_and_its_key_is_read_back(
    point: LeakagePoint, key: str, file: str, phase: str, tag: str
) -> None:
    assert (point.key, point.file, point.phase, point.tag) == (key, file, phase, tag)
    assert LeakagePoint.of(key) == point
    last = LeakagePoint(point.tap, point.rounds[-1:] or (0,))
    assert [LeakagePoint.of(file + more) for more in ("", ".truth", ".network2.00000")] == [last] * 3


@pytest.mark.parametrize("text", ["", "type-1@", "type-1@last", "type-1@5+", "@", f"type-1@{'9' * 5000}"])
def test_another_text_is_a_tap_without_rounds(text: str) -> None:
    assert LeakagePoint.of(text) == LeakagePoint(text)
    assert point_name(text) == text


def test_every_leakage_point_has_a_name() -> None:
    assert set(POINT_NAMES) == set(TAPS)


def test_names_are_listed() -> None:
    assert [listed(["a"]), listed(["a", "b"]), listed(["a", "b", "c"])] == ["a", "a and b", "a, b and c"]
