"""Select the setting to use: the most accurate usable one that meets the requirements and shows no significant leak."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable
from dataclasses import dataclass

import pandas as pd

from leakbench.core.verdict_words import IDENTIFIES, INCONCLUSIVE, LEAKING, RECONSTRUCTS
from leakbench.core.words import RELEASED, check_requirements
from leakbench.measure.rates import IDENTIFIED
from leakbench.reproduce.reached import Reached, reached
from leakbench.summary.verdict import CAUTION, LEVEL

__all__ = [
    "CHOICE",
    "CORRECTED",
    "LEARNED",
    "NOTHING_REQUIRED",
    "RELEASED",
    "Choice",
    "Requirements",
    "chosen",
    "first_point",
    "judged",
    "main_rows",
    "reaching",
    "refusals",
    "usable_from",
]

CHOICE = "choice_accuracy"
"""Column of the accuracy on the half of the test examples that chooses a setting."""

CORRECTED = "identify_p_corrected"
"""Column of the p-value of identification, corrected for the number of settings."""

LEARNED = 0.5
"""Share of what an undefended training learns above the commonest class that a usable setting keeps."""


@dataclass(frozen=True)
class Requirements:
    """Requirements of a user on the setting.

    Args:
        max_epsilon: The largest valid epsilon; None where any setting is accepted, also one without an epsilon.
        observer: Against whom the epsilon must be valid: `released`, or the leakage point where the observer reads.
    """

    max_epsilon: float | None = None
    observer: str = RELEASED

    @property
    def column(self) -> str:
        """Column of the rows with the epsilon against the observer."""
        return "epsilon_valid" if self.observer == RELEASED else "epsilon_tap"

    def check(self, points: Iterable[str]) -> None:
        """Raise InputError where the requirements do not fit the measured leakage points."""
        check_requirements(self.max_epsilon, self.observer, points)


NOTHING_REQUIRED = Requirements()


@dataclass(frozen=True)
class Choice:
    """The selected setting among the rows of one leakage point.

    Args:
        best: Row of the setting to use; None where no usable setting qualifies.
        alike: Rows of the other settings that qualify and whose accuracy interval overlaps that of the best one.
        unusable: Row of the most accurate setting that fails on accuracy alone; None without such a setting or if `best` exists.
        least: Without `best`, row of the usable setting within the epsilon that leaks least; None without such a setting.
        qualified: Number of settings that qualify.
        settings: Number of settings.
        usable: Least accuracy of a usable setting; None where no undefended training was measured.
        wanted: The requirements.
        higher: Number of qualifying settings whose accuracy on the reported half is above that of the best one.
    """

    best: pd.Series | None
    alike: pd.DataFrame
    unusable: pd.Series | None
    least: pd.Series | None
    qualified: int
    settings: int
    usable: float | None
    wanted: Requirements
    higher: int = 0


def main_rows(rows: pd.DataFrame, wanted: Requirements = NOTHING_REQUIRED) -> pd.DataFrame:
    """Return the rows of the leakage point that the answer is about, without the settings that were left out.

    It is the point of the required observer, else the first point that was requested.
    """
    if "point" not in rows or not len(rows):
        return rows.head(0)
    point = first_point(rows) if wanted.observer == RELEASED else wanted.observer
    selected: pd.DataFrame = rows[rows["left_out"].isna() & (rows["point"] == point)]
    return selected.reset_index(drop=True)


def first_point(rows: pd.DataFrame) -> str:
    """Return the leakage point that was requested first."""
    return str(json.loads(rows["asked"].iloc[0])["taps"][0])


def usable_from(rows: pd.DataFrame) -> float | None:
    """Return the least accuracy of a usable setting; None where no undefended training was measured.

    A usable setting keeps at least `LEARNED` of what the undefended training learns above the commonest class.
    """
    plain = rows[rows["defense"] == "none"] if len(rows) else rows
    if not len(plain) or plain[CHOICE].isna().all():
        return None
    accuracy, commonest = float(plain.iloc[0][CHOICE]), float(plain.iloc[0]["null_label"])
    return commonest + LEARNED * (accuracy - commonest)


def judged(rows: pd.DataFrame) -> pd.DataFrame:
    """Return rows with the column `CORRECTED` and with the verdicts that follow among all settings of a leakage point.

    A verdict on one setting states an identification where chance reaches it in less than `LEVEL` of all runs. Among many settings
    without a leak, chance reaches this in some. So the p-value must also be below `CAUTION` after Holm's correction for the number
    of settings (Scandinavian Journal of Statistics 6, 1979): in at most 5 % of frontiers, a setting that identifies nobody has the
    verdict `identifies`. Victims of one network need no correction: without a leak, each is identified by chance 1 / k, whatever
    the network is.

    Args:
        rows: All measured settings of one or more leakage points.
    """
    p, verdict = rows["identify_p"].astype(float), rows["verdict"]
    corrected = p.groupby(rows["point"]).transform(_holm) if len(rows) else p
    stated, significant = p < LEVEL, (p < LEVEL) & (corrected < CAUTION)
    verdict = verdict.mask((verdict == IDENTIFIES) & stated & ~significant, INCONCLUSIVE)
    verdict = verdict.mask(significant & (verdict != RECONSTRUCTS), IDENTIFIES)
    return rows.assign(**{CORRECTED: corrected, "verdict": verdict})


def _holm(p: pd.Series) -> pd.Series:
    """Return p-values corrected by Holm, 1979, eq. 7: the smallest times their number, the next times one less, never falling."""
    ordered = p.dropna().sort_values()
    corrected: pd.Series = (ordered * range(len(ordered), 0, -1)).cummax().clip(upper=1.0)
    return corrected.reindex(p.index)


def refusals(rows: pd.DataFrame, wanted: Requirements = NOTHING_REQUIRED) -> pd.Series:
    """Return for each row why it does not qualify, empty where it does.

    leak: the verdict among all settings is a leak (`judged`), or identification was not measured. A failed attack alone is not a
        reason.
    epsilon: the valid epsilon against the required observer is larger than required, or does not exist.
    accuracy: the setting is not usable. Without an undefended training, it predicts no better than the commonest class.
    """
    rows = judged(rows)
    leaking = rows["identify_p"].isna() | rows["verdict"].isin(LEAKING)
    reasons = {"leak": leaking, "accuracy": ~_usable(rows)}
    if wanted.max_epsilon is not None:
        reasons["epsilon"] = ~(rows[wanted.column].astype(float) <= wanted.max_epsilon)
    found = [", ".join(name for name, hit in reasons.items() if hit.loc[place]) for place in rows.index]
    return pd.Series(found, index=rows.index, dtype=object)


def _usable(rows: pd.DataFrame) -> pd.Series:
    least, accuracy = usable_from(rows), rows[CHOICE].astype(float)
    usable: pd.Series = accuracy > rows["null_label"].astype(float)
    return usable if least is None else usable & (accuracy >= least)


def chosen(rows: pd.DataFrame, wanted: Requirements = NOTHING_REQUIRED) -> Choice:
    """Return the choice among the rows of one leakage point.

    The smaller epsilon against the required observer decides between equal accuracies, then more noise.
    """
    usable = usable_from(rows)
    if not len(rows):
        return Choice(None, rows, None, None, 0, 0, usable, wanted)
    rows, reasons = judged(rows), refusals(rows, wanted)
    ranked = rows.sort_values(
        [CHOICE, wanted.column, "factor"],
        ascending=[False, True, False],
        na_position="last",
        kind="stable",
    )
    good = ranked[reasons[ranked.index] == ""]
    none = Choice(None, good, None, None, len(good), len(rows), usable, wanted)
    if not len(good):
        weak = ranked[reasons[ranked.index] == "accuracy"].dropna(subset=[CHOICE])
        strong = rows[reasons == "leak"].sort_values(
            [IDENTIFIED.name, "trained_accuracy"], ascending=[True, False], na_position="last", kind="stable"
        )
        return dataclasses.replace(none, unusable=_first(weak), least=_first(strong))
    best, rest = good.iloc[0], good.iloc[1:]
    above, below = rest["trained_accuracy_high"] >= best["trained_accuracy_low"], rest["trained_accuracy_low"]
    alike, higher = (
        rest[above & (below <= best["trained_accuracy_high"])],
        rest["trained_accuracy"] > best["trained_accuracy"],
    )
    return dataclasses.replace(none, best=best, alike=alike, higher=int(higher.sum()))


def _first(rows: pd.DataFrame) -> pd.Series | None:
    return rows.iloc[0] if len(rows) else None


def reaching(rows: pd.DataFrame, accuracy: float) -> list[Reached]:
    """Return, for each defense with noise, the setting with the most noise whose mean accuracy reaches a number."""
    noisy = rows[rows["noise"].astype(bool)].sort_values(["defense", "factor"], ascending=[True, False])
    return reached(noisy.assign(aim=accuracy, cell=noisy["row"]))
