"""The numbers under the columns of `strongest_figure.py`: three shares of victims, each with the baseline guess and its bound."""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd

from leakbench.summary.verdict import above_baseline, above_chance

__all__ = ["CLIP", "PICTURES", "SIGMAS", "UNDER", "Number", "digits", "number", "rows_at"]

SIGMAS = {
    0.0: "none",
    0.0025: "clip_4_noise_0_01",
    0.0075: "clip_4_noise_0_03",
    0.025: "clip_4_noise_0_1",
    0.1: "clip_4_sigma_0_1",
    1.0: "clip_4_sigma_1",
    6.0: "clip_4_sigma_6",
}
"""{noise multiplier: defense}, in the catalog or in studies/recipes."""

CLIP = 4

PICTURES = {
    "dlg": "DLG",
    "cpl": "CPL",
    "inverting_gradients_short": "Inverting Gradients",
    "whitened": "whitened",
    "whitened_public": "whitened, public",
}
"""{attack that answers with a picture: its name in the figure}, in the order of its rows."""

UNDER = {"asr": "faces rebuilt", "identified": "victim identified", "label": "label inferred"}
"""{share under a column: its name}."""

MEASURED_BY = {"asr": tuple(PICTURES), "identified": ("identification",), "label": ("labels",)}


@dataclass(frozen=True)
class Number:
    """A share of victims with its 95 % interval, the baseline guess, and a bound on every attack (None: no noise, no bound).

    leaks: Whether it is significantly above the guess.  who: The attack.
    """

    value: float
    low: float
    high: float
    guess: float
    bound: float | None
    leaks: bool
    who: str
    victims: int


def rows_at(rows: pd.DataFrame, sigma: float, *what: str) -> pd.DataFrame:
    """Return the rows of a column that measure one of these."""
    return rows[(rows["sigma"] == sigma) & rows["what"].isin(what)]


def number(rows: pd.DataFrame, under: str, sigma: float) -> Number | None:
    """Return one of `UNDER` at a noise multiplier, for the ASR that of the best attack; None where it was not measured."""
    found = rows_at(rows, sigma, *MEASURED_BY[under])
    if found.empty:
        return None
    if under == "asr":
        row = found.sort_values(["asr", "victims", "rmse"], ascending=[False, False, True]).iloc[0]
        share, guess = row[["asr", "asr_low"]].tolist(), row[["null_asr", "null_asr", "null_asr_high"]].tolist()
        return _number(row, "asr", "asr", row["null_asr"], above_baseline(share, guess))
    row = found.iloc[0]
    value = {"identified": "identified", "label": "label_accuracy"}[under]
    guess = {"identified": 1 / row["candidates"], "label": row["null_label"]}[under]
    right = round(row[value] * row["victims"])
    return _number(row, value, under, guess, above_chance(right, int(row["victims"]), guess))


def _number(row: pd.Series, value: str, under: str, guess: float, leaks: bool) -> Number:
    return Number(
        value=float(row[value]),
        low=float(row[f"{under}_low"]),
        high=float(row[f"{under}_high"]),
        guess=float(guess),
        bound=None if pd.isna(row[f"{under}_bound"]) else float(row[f"{under}_bound"]),
        leaks=leaks,
        who=str(row["what"]),
        victims=int(row["victims"]),
    )


def digits(under: str) -> int:
    """Return how many decimals a number has: identification among many is a small share."""
    return 3 if under == "identified" else 2
