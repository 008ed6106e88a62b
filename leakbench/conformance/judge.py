"""Ask a scorer every case, and say of each whether it passed, failed, or was not measured."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np

from leakbench.conformance import (
    clamping,
    examples,
    failures,
    labels,
    lpips_range,
    order,
    psnr,
    rmse,
    ssim,
    success,
    untouched,
)
from leakbench.conformance.case import Case
from leakbench.conformance.contract import Answer, Floats, Scorer, Truth, read_scores
from leakbench.conformance.known import shown

__all__ = ["Result", "all_cases", "conform"]

Outcome = Literal["passed", "failed", "not measured"]


@dataclass(frozen=True)
class Result:
    """What became of one case. got, expected: in words, empty where not measured; reason: why it was not."""

    case: str
    why: str
    outcome: Outcome
    got: str = ""
    expected: str = ""
    reason: str = ""


def all_cases(lpips_weights: Path | None = None) -> tuple[Case, ...]:
    """Return every case; lpips_weights: a folder with a backbone of LPIPS, as torchvision names it."""
    own = (rmse, psnr, ssim, clamping, examples, failures, success, order, labels, untouched)
    return *(made for part in own for made in part.cases()), *lpips_range.cases(lpips_weights)


def conform(scorer: Scorer, cases: Sequence[Case]) -> tuple[Result, ...]:
    """Ask the scorer each case, once.

    A scorer that raises has failed the case. Raises InputError where it returns what no scorer may, see `Scorer`.
    """
    return tuple(_judge(scorer, case) for case in cases)


def _judge(scorer: Scorer, case: Case) -> Result:
    if case.skipped:
        return Result(case.name, case.why, "not measured", reason=case.skipped)
    truth, answer = _copy(case.truth), _copy(case.answer)
    try:
        # What it prints must not mix with the table.
        with np.errstate(all="ignore"), redirect_stdout(sys.stderr):
            returned = scorer(cast(Truth, truth), cast(Answer, answer))
    except (Exception, SystemExit) as error:
        expected = str(next(iter(case.known.values())))
        return Result(case.name, case.why, "failed", f"raised {type(error).__name__}: {error}", expected)
    scores = read_scores(returned)
    scores["untouched"] = np.array(float(_same(truth, case.truth) and _same(answer, case.answer)))
    return _held(case, scores)


def _held(case: Case, scores: Mapping[str, Floats]) -> Result:
    measure = next((name for name in case.known if name in scores), None)
    if measure is None:
        reason = f"the scorer returns no {' or '.join(case.known)}"
        return Result(case.name, case.why, "not measured", reason=reason)
    got, known = scores[measure], case.known[measure]
    said = shown(got) if got.size else f"shape {got.shape}"
    prefix = "" if measure.startswith((case.measure, "overall")) else f"{measure} "
    outcome: Outcome = "passed" if known.holds(got) else "failed"
    return Result(case.name, case.why, outcome, prefix + said, prefix + str(known))


def _copy(arrays: Mapping[str, Any]) -> dict[str, Any]:
    return {name: array.copy() for name, array in arrays.items()}


def _same(given: Mapping[str, Any], before: Mapping[str, Any]) -> bool:
    return all(np.array_equal(given.get(n, np.array([])), array, equal_nan=True) for n, array in before.items())
