"""What weakens the evidence of a worst case: that attacks failed may say more of them than of the defense."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd

from leakbench.attack.doubts import BUDGET, OUTDONE, RANK, STUCK, UNCHECKED, UNCONVERGED, UNKNOWN
from leakbench.attack.methods.autoleak import AutoLeak
from leakbench.cell import Cell, looks_at, random_at
from leakbench.storage.summary import Tap

__all__ = ["WORDS", "doubts", "warnings"]

WORDS = {
    BUDGET: "a search was stopped by the budget before it had ended: its failure says nothing about the defense, its success may"
    " be closer without the budget",
    STUCK: "a search never came closer than its start: its gradients may vanish",
    UNCONVERGED: "the check on public examples without any defense failed: the searches did not converge",
    OUTDONE: "the search by likelihood ended at a less likely answer than another stage found",
    UNCHECKED: "too few public examples to try the same searches without any defense",
    UNKNOWN: "what the defense draws at random has no likelihood that the attacker knows",
    RANK: "linear equations of the closed form do not determine all values: the reconstruction is their shortest solution",
}
"""{doubt: its sentence}, in the order of the warnings."""


def doubts(group: pd.DataFrame) -> dict[str, int]:
    """Return {doubt: number of victims} from a leakage point's rows: doubts of `WORDS` in their order, then others by name.

    An external attack may have other doubts. A victim whose examples were all reconstructed counts for `BUDGET` only. The attacker
    does not know which victims it reconstructed, but the rows do. For a success, only its closeness can be in doubt.
    """
    back = group.groupby("victim")["success"].transform("all").astype(bool)
    firsts = group["member"] == 0
    each = [
        why
        for text, success in zip(group["doubts"][firsts], back[firsts], strict=True)
        for why in text.split("; ")
        if why and (not success or why == BUDGET)
    ]
    others = sorted(set(each) - set(WORDS))
    return {why: each.count(why) for why in (*WORDS, *others) if why in each}


def warnings(cell: Cell, taps: Mapping[str, Tap], rounds: pd.DataFrame) -> list[str]:
    """Return one sentence for each weakness of the evidence.

    They are about training that diverged, members that were not finite, fewer candidates than the user asked for, and what
    `autoleak` doubts of its attack.

    Args:
        taps: As in the summary, with `doubts`, `victims` and `candidates`.
        rounds: As in rounds.parquet.
    """
    worst_case = isinstance(cell.attack.method, AutoLeak)
    found = _diverged(rounds) + _zeroed(rounds) + _fewer_candidates(cell, taps)
    found += [
        f"{key}: for {many} of {tap.victims} victims, {WORDS.get(why, why)}"
        for key, tap in taps.items()
        for why, many in (tap.doubts or {}).items()
        if worst_case or why in (BUDGET, RANK)
    ]
    if not worst_case:
        return found
    return found + [
        f"{cell.settings.point(tap, rounds[-1]).key}: one observation of a randomised defense; --observations n averages its noise"
        for rounds in cell.settings.leaks
        for tap in cell.settings.taps
        if looks_at(cell, tap) == 1 and random_at(cell, tap)
    ]


def _fewer_candidates(cell: Cell, taps: Mapping[str, Tap]) -> list[str]:
    """Return that fewer candidates exist than the user asked for; the default of a data set is an upper limit."""
    asked, counts = cell.settings.candidates, [tap.candidates for tap in taps.values() if tap.candidates is not None]
    if asked <= cell.recipe.candidates or not counts or min(counts) >= asked:
        return []
    return [
        f"candidates: got {asked}, but {cell.names['dataset']} has only {min(counts)} to rank; expected at most these"
    ]


def _diverged(rounds: pd.DataFrame) -> list[str]:
    lost = rounds[~np.isfinite(rounds["loss"].astype(float))]["round"]
    if lost.empty:
        return []
    return [
        f"training diverged: from round {int(lost.iloc[0]) + 1} of {len(rounds)} on the model's answers are not finite, and none"
        " of them counts as right; a lower --learning-rate or --noise-factor may help"
    ]


MEMBERS = {"examples": "example gradients", "batches": "mean gradients of a batch", "updates": "updates"}
"""{column of rounds.parquet: what it counts}."""


def _zeroed(rounds: pd.DataFrame) -> list[str]:
    """Return how many members of each kind were not finite, so that their clip counted them as zero."""
    found = []
    for name, what in MEMBERS.items():
        lost = int(rounds[f"{name}_zeroed"].sum()) if f"{name}_zeroed" in rounds else 0
        if lost:
            verb = "was" if lost == 1 else "were"
            found.append(
                f"training: {lost} of {int(rounds[name].sum())} {what} {verb} not finite and counted as zero; a lower"
                " --learning-rate may help"
            )
    return found
