"""The answer of a frontier in a few sentences: the setting, its evidence, and the evidence against it."""

from __future__ import annotations

import json
from typing import Any

import pandas as pd

from leakbench.core.leakage_points import point_name
from leakbench.core.verdict_words import NO_LEAK
from leakbench.core.words import epsilon_text
from leakbench.frontier.choose import CORRECTED, LEARNED, RELEASED, Choice, Requirements
from leakbench.measure.rates import IDENTIFIED, LABEL_RANKED
from leakbench.reproduce.columns import text_of
from leakbench.summary.verdict import CAUTION

__all__ = ["answer_of", "command_words", "epsilon_or_reason", "p_text", "required", "setting_of", "share_text"]


def share_text(row: pd.Series, key: str) -> str:
    """Return a share with its interval, as `.95 [.91, .98]`; `not measured` where it is missing."""
    if pd.isna(row.get(key)):
        return "not measured"
    return f"{text_of(row[key], 3)} [{text_of(row[f'{key}_low'], 3)}, {text_of(row[f'{key}_high'], 3)}]"


def epsilon_or_reason(value: Any, reason: Any = "") -> str:
    """Return an epsilon in three digits; `none` with its reason where it does not exist."""
    if value is None or pd.isna(value):
        return f"none ({str(reason).removeprefix('none: ')})" if reason else "none"
    return epsilon_text(float(value), ",.3g" if float(value) < 1000 else ",.0f")


def setting_of(row: pd.Series) -> str:
    """Return a setting in words: the defense, and the factor on its noise with the sigma that follows."""
    name = f"`{row['row'].rpartition(', x ')[0] or row['row']}`"
    sigma = "" if pd.isna(row.get("sigma")) or not str(row["sigma"]) else f" (sigma {row['sigma']})"
    return f"{name} at noise x {row['factor']:g}{sigma}" if row["noise"] else f"{name}{sigma}"


def required(wanted: Requirements) -> str:
    """Return the requirement on epsilon in words; empty without a requirement."""
    if wanted.max_epsilon is None:
        return ""
    against = (
        "the released models" if wanted.observer == RELEASED else f"an observer of the {point_name(wanted.observer)}"
    )
    return f"valid epsilon of at most {wanted.max_epsilon:g} against {against}"


def command_words(wanted: Requirements) -> str:
    """Return the options of `leakbench frontier` that state the requirements, with a space before each."""
    words = "" if wanted.max_epsilon is None else f" --max-epsilon {wanted.max_epsilon:g}"
    return words if wanted.observer == RELEASED else f"{words} --observer {wanted.observer}"


def answer_of(rows: pd.DataFrame, choice: Choice) -> str:
    """Return the answer, its evidence and its limits.

    Args:
        rows: The rows of the leakage point that the answer is about.
        choice: The choice among them.
    """
    if not len(rows):
        return "Nothing was measured yet."
    asked, limit = json.loads(rows["asked"].iloc[0]), required(choice.wanted)
    where = f"On {asked['dataset']}, attacked at the {point_name(str(rows['point'].iloc[0]))} by an adaptive `autoleak`"
    where = f"{where}, with a {limit}" if limit else where
    of = f"{choice.settings} settings of {rows['defense'].nunique()} defenses"
    if choice.best is None:
        return " ".join([f"{where}: **no usable setting qualifies** among {of}.", *_nearest(choice)])
    best = choice.best
    plain = rows[rows["defense"] == "none"]
    undefended = f"undefended {text_of(plain.iloc[0]['trained_accuracy'], 3)}, " if len(plain) else ""
    compared = f" ({undefended}commonest class {text_of(best['null_label'], 2)})"
    said = (
        f"{where}: **use {setting_of(best)}**: accuracy {share_text(best, 'trained_accuracy')}{compared}, "
        f"valid epsilon {epsilon_or_reason(best['epsilon_valid'], best['epsilon_reason'])}, "
        f"identification {share_text(best, IDENTIFIED.name)}, not significantly above chance for "
        f"{best['identify_victims']:,.0f} victims among {best['candidates']:,.0f} candidates (chance: {_chance(best)}; "
        f"one-sided exact binomial test, {_p(best, choice)}, level {CAUTION:g})."
    )
    return " ".join([said, _power(best, of, choice), *_against(best, choice), *_alike(choice)])


def _chance(row: pd.Series) -> str:
    return f"[{text_of(row['null_identified_low'], 3)}, {text_of(row['null_identified_high'], 3)}]"


def _power(best: pd.Series, of: str, choice: Choice) -> str:
    many = (
        "the only one that qualifies"
        if choice.qualified == 1
        else f"the most accurate of {choice.qualified} that qualify (on the choosing half)"
    )
    said = f"This setting is {many} among {of}."
    if choice.higher:
        more = "1 other is more accurate" if choice.higher == 1 else f"{choice.higher} others are more accurate"
        said = f"{said} On the other half {more}."
    return (
        f"{said} The evidence does not exclude identification of up to {text_of(best['identified_high'], 3)} of the victims; "
        "this interval does not count that the same victims decide which settings qualify."
    )


def _against(best: pd.Series, choice: Choice) -> list[str]:
    """Return the evidence against the setting, and the limits of the evidence for it."""
    found = []
    at_point = epsilon_or_reason(best["epsilon_tap"], best["epsilon_tap_reason"])
    if at_point != epsilon_or_reason(best["epsilon_valid"], best["epsilon_reason"]):
        found.append(f"Against an observer of the {point_name(best['point'])} the valid epsilon is {at_point}.")
    if best.get("label_ranked_low", 0) > best.get("null_label", 1):
        label = share_text(best, LABEL_RANKED.name)
        found.append(
            f"The label leaks: the attacker is right in {label} (commonest class {text_of(best['null_label'], 2)})."
        )
    if best["identify_p"] < CAUTION:
        found.append(
            f"Tested alone, its identification would be above chance at level {CAUTION:g}; more victims would decide."
        )
    if pd.notna(best["epsilon_valid"]) and best["epsilon_valid"] > HIGH:
        found.append(
            "An epsilon this large is not a guarantee: only the measurement of one attacker supports this setting."
        )
    if pd.isna(best["epsilon_valid"]):
        found.append("Without an epsilon, only the measurement of one attacker supports this setting.")
    if best["verdict"] != NO_LEAK:
        found.append(f"The verdict on this setting is `{best['verdict']}`.")
    if choice.usable is None:
        found.append("Usefulness was not checked: the undefended training (`none`) was not measured.")
    return found


HIGH = 10.0
"""An epsilon above which odds may change by more than e^10 = 22,000."""


def _alike(choice: Choice) -> list[str]:
    if not len(choice.alike):
        return []
    said = f"Settings that qualify and whose interval of accuracy overlaps: {'; '.join(choice.alike['row'])}."
    column = choice.wanted.column
    promised = choice.alike.dropna(subset=[column]).sort_values(column)
    if not len(promised) or (choice.best is not None and promised.iloc[0][column] >= choice.best[column]):
        return [said]
    least = promised.iloc[0]
    accuracy = share_text(least, "trained_accuracy")
    return [
        f"{said} Of these, {least['row']} has the smallest epsilon: valid epsilon {epsilon_or_reason(least[column])}, accuracy "
        f"{accuracy}."
    ]


def _nearest(choice: Choice) -> list[str]:
    """Return the settings that come nearest where none qualifies: one without a leak, and one that is usable."""
    found = []
    if choice.usable is not None:
        found.append(
            f"Usable means an accuracy of at least {text_of(choice.usable, 3)}: {LEARNED:.0%} of what undefended training "
            "learns above the commonest class."
        )
    if choice.unusable is not None:
        row = choice.unusable
        found.append(
            f"The most accurate setting that meets the other conditions is {setting_of(row)}: accuracy "
            f"{share_text(row, 'trained_accuracy')} (commonest class {text_of(row['null_label'], 2)}), too low to be usable."
        )
    if choice.least is not None:
        row = choice.least
        within = ", within the epsilon," if choice.wanted.max_epsilon is not None else ""
        found.append(
            f"The usable setting{within} that leaks least is {setting_of(row)}: accuracy {share_text(row, 'trained_accuracy')}, "
            f"identification {share_text(row, IDENTIFIED.name)} where chance has {_chance(row)} "
            f"({_p(row, choice)}), verdict `{row['verdict']}`, with {row['identify_victims']:,.0f} victims among "
            f"{row['candidates']:,.0f} candidates."
        )
    elif choice.wanted.max_epsilon is not None:
        found.append("No usable setting has an epsilon this small, with or without a leak.")
    return found


def _p(row: pd.Series, choice: Choice) -> str:
    """Return the p-value of a setting, and what it is after the correction for the number of settings."""
    alone, corrected = (
        f"{'' if text.startswith('<') else '= '}{text}" for text in (p_text(row["identify_p"]), p_text(row[CORRECTED]))
    )
    if choice.settings == 1:
        return f"p {alone}"
    return f"p {alone}; corrected for {choice.settings} settings: p {corrected}"


def p_text(p: float) -> str:
    """Return a p-value in three digits, a small one by its power of ten."""
    if pd.isna(p):
        return "not measured"
    return text_of(p, 3) if p >= 0.001 else "< 1e-99" if p < 1e-99 else f"{p:.0e}"
