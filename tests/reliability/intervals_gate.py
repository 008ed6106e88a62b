"""Measures how often the gate raises an alarm without a change, and if the ASR rose by .2, with 100 victims."""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.stats import binom

from leakbench.core.hashes import content_hash
from leakbench.gate.gate import LEVEL, GateLimits, _risen, gate
from tests.reliability.intervals_paired import chances, compared, pairs
from tests.reliability.tally import Tally

__all__ = ["RISE", "alarms", "check_batches", "check_decisions", "check_files", "power"]

RISE = 0.2

LOOKED_AT = {1: 0.1, 2: 0.08, 6: 0.05}
"""{number of tests at once: largest share of victims with the opposite change at which 90 % of rises of .2 are detected}.

Two are ASR and identified at one leakage point, six at three.
"""

ANEW = 0.4 * (1 - 0.6)
"""Share of victims with the opposite change if both runs are independent, at .4 before and .6 now: the most for a rise of .2."""


def rows_of(success: np.ndarray, members: int = 1) -> pd.DataFrame:
    """Return the rows of a run at one leakage point, given which of (victims * members,) succeed; all are identified."""
    count = len(success)
    return pd.DataFrame(
        {"tap": "type-2", "round": 0, "victim": np.arange(count) // members, "member": np.arange(count) % members}
    ).assign(
        network=0, example=np.arange(count), label=1, eta=0.1, candidates=300, success=success, identified=1.0, failure_reason="",
        label_guess=1, rmse=0.2, null_rmse=0.3,
    )  # fmt: skip


@lru_cache(maxsize=8)
def alarms(number: int, looked_at: int) -> tuple[bool, ...]:
    """Return, for each of `pairs`, whether the gate reports that the ASR rose."""
    now, before = rows_of(np.zeros(number, dtype=bool)), rows_of(np.zeros(number, dtype=bool))
    found = []
    for (gain, lose), difference in zip(pairs(number), compared(number), strict=True):
        now["success"] = np.arange(number) < gain
        before["success"] = np.arange(number) >= number - lose
        found.append(not _risen(difference, now, before, LEVEL / looked_at).holds)
    return tuple(found)


def power(number: int, looked_at: int, lose: float, rise: float = RISE) -> float:
    """Return the probability of an alarm if the ASR rose and a share `lose` of the victims changed from success to failure."""
    return float(chances(number, rise + lose, lose) @ np.array(alarms(number, looked_at)))


def check_decisions(tally: Tally, numbers: tuple[int, ...]) -> None:
    """False alarms of all tests together are at most 5 %; 90 % of rises by .2 are detected with 100 victims."""
    said = []
    for number in numbers:
        worst = {}
        for looked_at in LOOKED_AT:
            # A sum of probabilities bounds any alarm, also of dependent tests.
            worst[looked_at] = looked_at * max(
                float(chances(number, p, p) @ np.array(alarms(number, looked_at))) for p in np.arange(0.01, 0.5, 0.01)
            )
            tally.expect(
                worst[looked_at] <= LEVEL,
                f"the gate on {number} victims, {looked_at} looked at: false alarms {worst[looked_at]:.4f}, expected at most .05",
            )
        said.append(f"{number} victims {', '.join(f'{w:.3f}' for w in worst.values())}")
    tally.figures.append(f"gate, false alarms at most, of 1, 2 and 6 rises looked for: {'; '.join(said)}")
    if 100 not in numbers:
        return
    seen = []
    for looked_at, lose in LOOKED_AT.items():
        found = power(100, looked_at, lose)
        tally.expect(
            found >= 0.9, f"the gate, {looked_at} looked at, {lose:g} the other way: power {found:.4f}, expected >= .9"
        )
        tally.expect(
            power(100, looked_at, 0.0) >= 0.99, f"the gate, {looked_at} looked at, none the other way: power under .99"
        )
        apart = power(100, looked_at, ANEW)
        seen.append(
            f"of {looked_at} {found:.3f} ({lose:.0%} the other way), {apart:.3f} ({ANEW:.0%}, as from .4 to .6 by other noise)"
        )
    tally.figures.append(
        f"gate, power for +.2 with 100 victims: 1.000 where nobody fares the other way; {'; '.join(seen)}"
    )


def written(path: Path, rows: pd.DataFrame) -> Path:
    """Write rows as a baseline file."""
    told = {"dataset": "digits", "accuracy": None, "epsilon": None, "attack": "lmmse 0", "hash": "h", "name": "made up"}
    columns = {name: values.tolist() for name, values in rows.items()}
    kept = {"leakbench baseline": 1, **told, "settings": {}, "examples": len(rows), "rows": columns}
    path.write_text(json.dumps({**kept, "checksum": content_hash(kept)}), encoding="utf-8")
    return path


def check_files(tally: Tally, scratch: Path, number: int, tries: int) -> None:
    """The whole gate, from files, decides as the table of pairs does: two tests at one leakage point."""
    rng = np.random.default_rng(20)
    for _ in range(tries):
        gain = int(rng.integers(0, number // 3))
        lose = int(rng.integers(0, number // 3))
        now = written(scratch / "now.json", rows_of(np.arange(number) < gain))
        before = written(scratch / "before.json", rows_of(np.arange(number) >= number - lose))
        said = any(not check.holds for check in gate(now, before, GateLimits()))
        expected = alarms(number, 2)[pairs(number).index((gain, lose))]
        tally.expect(said == expected, f"gate: {gain} of {number} gain, {lose} lose: alarm {said}, expected {expected}")


def check_batches(tally: Tally, scratch: Path, tries: int) -> None:
    """25 batches of four dependent members: equal runs raise an alarm in at most 5 %, up to the error of the simulation."""
    rng, alarmed = np.random.default_rng(21), 0
    for _ in range(tries):
        chance = rng.beta(1, 1, (25, 1))
        hits = [(rng.random((25, 4)) < chance).ravel() for _ in range(2)]
        files = [
            written(scratch / f"{name}.json", rows_of(h, 4)) for name, h in zip(("now", "before"), hits, strict=True)
        ]
        alarmed += any(not check.holds for check in gate(files[0], files[1], GateLimits()))
    tally.expect(alarmed <= binom.ppf(0.99, tries, LEVEL), f"the gate by batch: {alarmed} false alarms of {tries}")
    tally.figures.append(f"gate, 25 batches of four: {alarmed} false alarms of {tries}")
