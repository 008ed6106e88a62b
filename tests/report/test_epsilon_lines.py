"""The lines of `leakbench epsilon`: one column of numbers, and a reason without a second "none"."""

from typing import Any

import pytest

from leakbench.report.epsilons import epsilon_lines


def at(valid: float | None, reason: str, without_draw: float | None = None) -> dict[str, Any]:
    return {"valid": valid, "without_draw": without_draw, "reason": reason}


@pytest.mark.parametrize(("large", "text"), [(1.5, "1.500"), (123456.75, "123456.750"), (5.5e8, "5.5e+08")])
def test_reasons_start_in_one_column_whatever_the_numbers(large: float, text: str) -> None:
    points = {"type-2": at(None, "none: trusts the server"), "type-1": at(large, "noise", 2.0)}
    found = {**at(0.25, "sum"), "claimed": None, "claimed_formula": "none: no defense", "caveats": ["it counts less"]}
    lines = list(epsilon_lines({**found, "by_tap": points}))
    reasons = ("no defense", "but it counts", "sum", "trusts the", "noise", "participation")
    assert len({line.index(reason) for line, reason in zip(lines, reasons, strict=True)}) == 1
    assert [line.split("  ")[-2].strip() for line in lines if "but" not in line] == [
        "none",
        "0.250",
        "none",
        text,
        "2.000",
    ]
