"""The reliability promises: a short version of each in the ordinary suite, and each at full length by its mark."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.reliability.__main__ import RECORD, ROOT, recorded, table
from tests.reliability.points import POINTS, Point
from tests.reliability.tally import Tally


@pytest.mark.slow
@pytest.mark.parametrize("point", POINTS, ids=lambda point: point.name)
def test_a_short_version_of_each_promise_holds(point: Point, tmp_path: Path) -> None:
    found = point.check(False, tmp_path)
    assert found.tried > 0 and not found.failures, "\n".join(found.failures)


@pytest.mark.parametrize("point", [pytest.param(p, marks=getattr(pytest.mark, p.mark), id=p.name) for p in POINTS])
def test_each_promise_holds_at_full_length(point: Point, tmp_path: Path) -> None:
    found = point.check(True, tmp_path)
    assert found.tried > 0 and not found.failures, "\n".join(found.failures)


def test_a_case_that_raises_has_failed() -> None:
    tally = Tally()
    with tally.case("this one"):
        raise ValueError("no\nsecond line")
    tally.expect(False, "that one")
    tally.expect(True, "unseen")
    assert (tally.tried, tally.failures) == (3, ["this one: ValueError: no", "that one"])


def test_the_page_has_the_recorded_table() -> None:
    assert RECORD.exists()
    assert table(recorded()) in (ROOT / "docs" / "reliability.md").read_text(encoding="utf-8")
