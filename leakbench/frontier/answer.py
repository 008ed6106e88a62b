"""The answer of a frontier in a sentence, with what it rests on and what speaks against it."""

from __future__ import annotations

import json
from typing import Any

import pandas as pd

from leakbench.frontier.choose import Choice, first_point
from leakbench.reproduce.columns import text_of
from leakbench.summary.verdict import CAUTION
from leakbench.summary.verdict_words import NO_LEAK

__all__ = ["answer_of", "epsilon_text", "setting_of", "share_text"]


def share_text(row: pd.Series, key: str) -> str:
    """Return a share with its interval, as `.95 [.91, .98]`; `not measured` where there is none."""
    if pd.isna(row.get(key)):
        return "not measured"
    return f"{text_of(row[key], 3)} [{text_of(row[f'{key}_low'], 3)}, {text_of(row[f'{key}_high'], 3)}]"


def epsilon_text(value: Any, reason: Any = "") -> str:
    """Return an epsilon in three digits, `none` with its reason where there is none."""
    if value is None or pd.isna(value):
        return f"none ({str(reason).removeprefix('none: ')})" if reason else "none"
    return f"{float(value):,.3g}" if float(value) < 1000 else f"{float(value):,.0f}"


def setting_of(row: pd.Series) -> str:
    """Return a setting in words: the defense, and the factor on its noise with the sigma that follows."""
    name = f"`{row['row'].rpartition(', x ')[0] or row['row']}`"
    sigma = "" if pd.isna(row.get("sigma")) or not str(row["sigma"]) else f" (sigma {row['sigma']})"
    return f"{name} at noise x {row['factor']:g}{sigma}" if row["noise"] else f"{name}{sigma}"


def answer_of(rows: pd.DataFrame, choice: Choice) -> str:
    """Return the sentence, and those that say how far it can be trusted.

    rows: of the leakage point that is answered for.
    """
    if not len(rows):
        return "Nothing was measured yet."
    asked = json.loads(rows["asked"].iloc[0])
    where = f"On {asked['dataset']}, read at {first_point(rows)} by `autoleak`, who knows the defense"
    of = f"{choice.settings} settings of {rows['defense'].nunique()} defenses"
    if choice.best is None:
        return f"{where}: **no setting qualifies** of {of}. {_least(choice)}"
    best = choice.best
    plain = rows[rows["defense"] == "none"]
    none = f"without a defense {text_of(plain.iloc[0]['trained_accuracy'], 3)}, " if len(plain) else ""
    beside = f" ({none}the commonest class alone {text_of(best['null_label'], 2)})"
    useless = bool(best["trained_accuracy"] <= best["null_label"])  # False too where no guess is known.
    use = (
        f"nothing that qualifies is of use, the most accurate is {setting_of(best)}"
        if useless
        else f"use {setting_of(best)}"
    )
    said = (
        f"{where}: **{use}**: accuracy {share_text(best, 'trained_accuracy')}{beside}, "
        f"valid epsilon {epsilon_text(best['epsilon_valid'], best['epsilon_reason'])}, "
        f"identification {share_text(best, 'identified')}, not told from chance by {best['identify_victims']:,.0f} victims among "
        f"{best['candidates']:,.0f} candidates (chance: {_null(best)}; one-sided exact binomial test at level {CAUTION:g}, "
        f"p = {text_of(best['identify_p'], 3)})."
    )
    return " ".join([said, _power(best, of, choice), *_against(best), *_alike(choice)])


def _null(row: pd.Series) -> str:
    return f"[{text_of(row['null_identified_low'], 3)}, {text_of(row['null_identified_high'], 3)}]"


def _power(best: pd.Series, of: str, choice: Choice) -> str:
    return (
        f"It is the most accurate of {choice.qualified} that qualify of {of}. So many victims do not exclude an attacker who "
        f"identifies up to {text_of(best['identified_high'], 3)} of them."
    )


def _against(best: pd.Series) -> list[str]:
    """Return what the setting does not hide, or what was not shown of it."""
    found = []
    tap = epsilon_text(best["epsilon_tap"], best["epsilon_tap_reason"])
    if tap != epsilon_text(best["epsilon_valid"], best["epsilon_reason"]):
        found.append(f"Against who reads {best['point']} the valid epsilon is {tap}.")
    if best.get("label_ranked_low", 0) > best.get("null_label", 1):
        label = share_text(best, "label_ranked")
        found.append(
            f"It does not hide the label, which is told of {label} (a guess: {text_of(best['null_label'], 2)})."
        )
    if pd.notna(best["epsilon_valid"]) and best["epsilon_valid"] > HIGH:
        found.append("So large an epsilon promises nothing: this setting rests on what was measured of one attacker.")
    if pd.isna(best["epsilon_valid"]):
        found.append("Without an epsilon this setting rests on what was measured of one attacker.")
    if best["verdict"] != NO_LEAK:
        found.append(f"The verdict on it is `{best['verdict']}`.")
    return found


HIGH = 10.0
"""An epsilon above which odds may change by more than e^10 = 22,000."""


def _alike(choice: Choice) -> list[str]:
    if not len(choice.alike):
        return []
    said = f"Not told from it in accuracy: {'; '.join(choice.alike['row'])}."
    promised = choice.alike.dropna(subset=["epsilon_valid"]).sort_values("epsilon_valid")
    if not len(promised) or (
        choice.best is not None and promised.iloc[0]["epsilon_valid"] >= choice.best["epsilon_valid"]
    ):
        return [said]
    least = promised.iloc[0]
    accuracy = share_text(least, "trained_accuracy")
    return [
        f"{said} Of these {least['row']} promises most: valid epsilon {epsilon_text(least['epsilon_valid'])}, accuracy {accuracy}."
    ]


def _least(choice: Choice) -> str:
    if choice.least is None:
        return ""
    row = choice.least
    return (
        f"The least leaks {setting_of(row)}: accuracy {share_text(row, 'trained_accuracy')}, identification "
        f"{share_text(row, 'identified')} where chance has {_null(row)}, verdict `{row['verdict']}`, with "
        f"{row['identify_victims']:,.0f} victims among {row['candidates']:,.0f} candidates."
    )
