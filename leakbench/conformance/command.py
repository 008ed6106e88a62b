"""The command `conformance`: leakbench's own scorer, or a user's, and a line for every case."""

from __future__ import annotations

import dataclasses
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from leakbench.attack.null.pictures import NullAttack
from leakbench.conformance.contract import AVERAGED, MEASURES, Answer, Truth
from leakbench.conformance.judge import CaseResult, all_cases, conform
from leakbench.core.answers import Ranking
from leakbench.core.errors import InputError
from leakbench.core.imported import import_function
from leakbench.measure import metrics
from leakbench.measure.metrics import load_lpips
from leakbench.measure.rates import ASR, IDENTIFIED, LABEL_RANKED, LABELS
from leakbench.scoring.scores import VictimTruth, no_reconstruction, score
from leakbench.summary.tap import tap_summary

__all__ = ["OwnScorer", "as_dict", "conformance", "lines"]


@dataclass(frozen=True)
class OwnScorer:
    """Score as `leakbench run` does.

    Args:
        eta: The threshold of success.
        lpips: a score, or the reason why it is missing.
    """

    eta: float = 0.1
    lpips: metrics.Score | str = metrics.LPIPS_ABSENT

    def __call__(self, truth: Truth, answer: Answer) -> Mapping[str, Any]:
        """Return every measure, see `leakbench.conformance.Scorer`."""
        inputs, labels, said, guesses = (
            torch.from_numpy(a) for a in (truth["inputs"], truth["labels"], answer["inputs"], answer["labels"])
        )
        victims, members = labels.shape
        lanes = torch.arange(victims)
        real = VictimTruth(lanes, inputs, labels, torch.arange(victims * members).reshape(victims, members), lanes)
        given = dataclasses.replace(no_reconstruction(real), inputs=said, labels=guesses, iterates=said[None])
        # No case needs the baseline guess or a ranking, so the guess is black and all scores are equal.
        null = NullAttack({"black": torch.zeros_like(inputs.flatten(0, 1))}, {}, {}, "black", "black")
        many = {IDENTIFIED.name: victims, LABEL_RANKED.name: int(labels.max()) + 1}
        alike = {name: Ranking(torch.zeros(victims, k)) for name, k in many.items()}
        rows, _ = score("type-1", 0, given, alike, null, real, self.eta, self.lpips)
        return self._returned(rows, (victims, members)) | {"matched": metrics.match(said, inputs).numpy()}

    def _returned(self, rows: pd.DataFrame, shape: tuple[int, int]) -> dict[str, Any]:
        rows = rows.assign(label_accuracy=rows["label"] == rows["label_guess"])
        names = [n for n in (*AVERAGED, ASR.column, LABELS.name) if n != "lpips" or callable(self.lpips)]
        table = tap_summary(rows, 0.0)
        # A summary has None for an infinite value over all examples.
        overall = {n: np.nan if table.value(n) is None else table.value(n) for n in AVERAGED if n in names}
        return {n: rows[n].to_numpy().reshape(shape) for n in names} | {ASR.name: table.asr, "overall": overall}


OUTCOMES = ("passed", "failed", "not measured")
COLUMN = 36

UNTOUCHED = "truth: untouched"
"""The only case without a measure."""


def conformance(path: str | None, lpips_weights: Path | None) -> tuple[CaseResult, ...]:
    """Return the result of every case.

    Args:
        path: `package.module:name` of a scorer, importable from the working folder too; None for leakbench's own.
        lpips_weights: Folder with a backbone of LPIPS; without it, the case of LPIPS is not measured.

    Raises:
        InputError: For an invalid option, or a scorer without a measure.
    """
    lpips = load_lpips(lpips_weights)
    if lpips_weights is not None and isinstance(lpips, str):
        raise InputError(f"lpips-weights: {str(lpips_weights)!r}: {lpips.removeprefix('n/a: ')}")
    scorer = OwnScorer(lpips=lpips) if path is None else import_function("scorer", path, os.getcwd())
    results = conform(scorer, all_cases(lpips_weights))
    with_measure = [result for result in results if result.case != UNTOUCHED]
    if all(result.outcome == "not measured" for result in with_measure):
        raise InputError(f"scorer: {path!r} measured nothing, expected at least one of {', '.join(MEASURES)}")
    return results


def as_dict(path: str | None, results: Sequence[CaseResult]) -> dict[str, Any]:
    """Return the data that `--json` prints."""
    cases = [asdict(result) for result in results]
    return {"scorer": path or "leakbench", **_counts(results), "never_ran": _never_ran(path, results), "cases": cases}


def lines(path: str | None, results: Sequence[CaseResult]) -> list[str]:
    """Return the table, with the value and the expected value of a failed case, and the reason of a case that is not measured."""
    table = [f"{'case':<{COLUMN}}{path or 'leakbench'}"]
    for result in results:
        table.append(f"{result.case:<{COLUMN}}{result.outcome}")
        if result.outcome == "failed":
            table[-1] += f": got {result.got}, expected {result.expected}"
            table.append(f"{'':<{COLUMN}}{result.why}")
        elif result.reason:
            table[-1] += f": {result.reason}"
    counts = _counts(results)
    table.append(", ".join(f"{counts[o.replace(' ', '_')]} {o}" for o in OUTCOMES))
    never = _never_ran(path, results)
    return [*table, never] if never else table


def _never_ran(path: str | None, results: Sequence[CaseResult]) -> str | None:
    """Return one line about a scorer that raised an error in every case; None for another scorer."""
    raised = [result for result in results if result.call == "raised"]
    if not raised or any(result.call == "returned" for result in results):
        return None
    first = raised[0].got.removeprefix("raised ")
    return (
        f"{path or 'leakbench'} never ran: it raised in all {len(raised)} cases that it was asked, in the first {first}"
    )


def _counts(results: Sequence[CaseResult]) -> dict[str, int]:
    found = Counter(result.outcome for result in results)
    return {outcome.replace(" ", "_"): found[outcome] for outcome in OUTCOMES}  # type: ignore[index]
