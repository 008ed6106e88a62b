"""Runs a scorer on every case, which passes, fails, or is not measured."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np

from leakbench.conformance.batch_cases import batch_cases
from leakbench.conformance.case import Case, shown
from leakbench.conformance.contract import Answer, Floats, Scorer, Truth, read_scores
from leakbench.conformance.pixel_cases import lpips_case, pixel_cases
from leakbench.core.imported import reason_of

__all__ = ["CaseResult", "all_cases", "conform"]

Outcome = Literal["passed", "failed", "not measured"]


@dataclass(frozen=True)
class CaseResult:
    """The result of one case.

    Args:
        got: In words, empty where not measured.
        expected: In words, empty where not measured.
        reason: Why it was not.
        call: How the call of the scorer ended.
    """

    case: str
    why: str
    outcome: Outcome
    got: str = ""
    expected: str = ""
    reason: str = ""
    call: Literal["returned", "raised", "not asked"] = "returned"


def all_cases(lpips_weights: Path | None = None) -> tuple[Case, ...]:
    """Return every case.

    Args:
        lpips_weights: a folder with a backbone of LPIPS, as torchvision names it.
    """
    return *pixel_cases(), *batch_cases(), lpips_case(lpips_weights)


def conform(scorer: Scorer, cases: Sequence[Case]) -> tuple[CaseResult, ...]:
    """Run the scorer on each case, once.

    A scorer fails a case if it raises an error, or if it omits a measure that it returns in other cases.

    Raises:
        InputError: the scorer returned something that `Scorer` does not allow.
    """
    asked = [{} if case.skipped else _ask(scorer, case) for case in cases]
    measured = {name for scores in asked if isinstance(scores, dict) for name in scores}
    return tuple(_judge(case, scores, measured) for case, scores in zip(cases, asked, strict=True))


def _ask(scorer: Scorer, case: Case) -> dict[str, Floats] | str:
    """Return the scores and `untouched`, 1 if the arrays did not change; or the error of the scorer."""
    truth, answer = _copy(case.truth), _copy(case.answer)
    try:
        # The scorer's prints must not mix with the table.
        with np.errstate(all="ignore"), redirect_stdout(sys.stderr):
            returned = scorer(cast(Truth, truth), cast(Answer, answer))
    except (Exception, SystemExit) as error:
        return f"raised {' '.join(reason_of(error).split())}"
    untouched = _same(truth, case.truth) and _same(answer, case.answer)
    return read_scores(returned) | {"untouched": np.array(float(untouched))}


def _judge(case: Case, scores: dict[str, Floats] | str, measured: set[str]) -> CaseResult:
    """Check every measure of the case that the scorer returns in any case; the result has the first wrong one."""
    if case.skipped:
        return CaseResult(case.name, case.why, "not measured", reason=case.skipped, call="not asked")
    if isinstance(scores, str):
        return CaseResult(case.name, case.why, "failed", scores, str(next(iter(case.known.values()))), call="raised")
    held = [name for name in case.known if name in measured]
    if not held:
        return CaseResult(
            case.name, case.why, "not measured", reason=f"the scorer returns no {' or '.join(case.known)}"
        )
    wrong = [name for name in held if name not in scores or not case.known[name].holds(scores[name])]
    measure = (wrong or held)[0]
    prefix = "" if measure.removeprefix("overall ") == case.measure else f"{measure} "
    got = prefix + _numbers(scores[measure]) if measure in scores else f"no {measure}, which it has elsewhere"
    others = f"; wrong too: {', '.join(wrong[1:])}" if wrong[1:] else ""
    outcome: Outcome = "failed" if wrong else "passed"
    return CaseResult(case.name, case.why, outcome, got + others, prefix + str(case.known[measure]))


def _numbers(got: Floats) -> str:
    return shown(got) if got.size else f"shape {got.shape}"


def _copy(arrays: Mapping[str, Any]) -> dict[str, Any]:
    return {name: array.copy() for name, array in arrays.items()}


def _same(given: Mapping[str, Any], before: Mapping[str, Any]) -> bool:
    return all(np.array_equal(given.get(n, np.array([])), array, equal_nan=True) for n, array in before.items())
