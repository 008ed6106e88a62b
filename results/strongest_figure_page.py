"""What stands under the columns of `strongest_figure.py`, and the page whose prose is written by hand around these numbers."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pandas as pd
from scipy.stats import binomtest

from leakbench.errors import InputError

__all__ = ["PICTURES", "SIGMAS", "UNDER", "Number", "filled", "number", "rows_at"]

SIGMAS = {
    0.0: "none",
    0.0025: "clip_4_noise_0_01",
    0.0075: "clip_4_noise_0_03",
    0.025: "clip_4_noise_0_1",
    0.1: "clip_4_sigma_0_1",
    1.0: "clip_4_sigma_1",
    6.0: "clip_4_sigma_6",
}
"""{noise multiplier: defense}, in the catalog or in results/recipes."""

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
"""{what stands under a column: its name}."""

NOTHING = 0.995
"""A bound from here on forbids hardly anything."""

CHANCE = 0.01
"""An outcome that guessing reaches less often than this is more than a guess."""


@dataclass(frozen=True)
class Number:
    """A share of victims with its 95 % interval, beside what guessing gets and what no attack exceeds (None: no noise, no bound).

    leaks: whether it is more than a guess.  who: the attack.
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
    """Return one of `UNDER` at a noise multiplier, None where it was not measured; of the ASR, the best attack's."""
    what = {"asr": tuple(PICTURES), "identified": ("identification",), "label": ("labels",)}[under]
    found = rows_at(rows, sigma, *what)
    if found.empty:
        return None
    if under == "asr":
        row = found.sort_values(["asr", "victims", "rmse"], ascending=[False, False, True]).iloc[0]
        leaks = row["asr_low"] > row["null_asr"] and row["asr"] > row["null_asr_high"]
        return _number(row, ("asr", "asr_low", "asr_high"), row["null_asr"], "asr_bound", leaks)
    row = found.iloc[0]
    value, low, bound = ("identified",) * 2 + ("identified_bound",) if under == "identified" else _LABEL
    guess = 1 / row["candidates"] if under == "identified" else row["null_label"]
    right, many = round(row[value] * row["victims"]), int(row["victims"])
    leaks = bool(binomtest(right, many, guess, "greater").pvalue < CHANCE)
    return _number(row, (value, f"{low}_low", f"{low}_high"), guess, bound, leaks)


_LABEL = ("label_accuracy", "label", "label_bound")


def _number(row: pd.Series, names: tuple[str, str, str], guess: float, bound: str, leaks: bool) -> Number:
    value, low, high = (float(row[name]) for name in names)
    most = None if pd.isna(row[bound]) else float(row[bound])
    return Number(value, low, high, float(guess), most, bool(leaks), str(row["what"]), int(row["victims"]))


def filled(page: str, rows: pd.DataFrame) -> str:
    """Return the page with each block between `<!-- NAME -->` and `<!-- end -->` written anew; raises InputError for a missing one."""
    for name, write in BLOCKS.items():
        marks = re.compile(rf"(<!-- {name} -->\n).*?(<!-- end -->)", re.DOTALL)
        if not marks.search(page):
            raise InputError(f"strongest-attacker.md: no block '<!-- {name} -->' ... '<!-- end -->' to write into")
        text = "\n".join(write(rows))
        page = marks.sub(lambda found, text=text: f"{found[1]}{text}\n{found[2]}", page)  # type: ignore[misc]
    return page


def _setting(rows: pd.DataFrame) -> Iterator[str]:
    """Yield how many victims there are of what, and after how many iterations searches end."""
    for what in (*PICTURES, "identification", "labels"):
        of = rows[rows["what"] == what]
        if of.empty:
            continue
        victims = " or ".join(f"{many:,.0f}" for many in sorted(set(of["victims"])))
        limits = sorted(set(of["limit"].dropna()))
        until = f", at most {limits[-1]:,.0f} iterations" if limits and what != "labels" else ""
        yield f"- {_SHOWN.get(what, f'`{what}`')}: {victims} victims{until}"
    pixels = rows[rows["what"].isin(PICTURES)]
    if not pixels.empty:
        one = pixels.iloc[0]
        yield f"- a face counts as rebuilt at an RMSE of at most {one['eta']:.3f}; there are {one['public']:.0f} public faces"


_SHOWN = {
    "identification": "identified, by `identification`",
    "labels": "label, read by `whitened` before its search begins",
}


def _numbers(rows: pd.DataFrame) -> Iterator[str]:
    """Yield the table of what stands under the columns."""
    heads = [f"{title}, {more}" for title in UNDER.values() for more in ("[95 % CI]", "a guess", "at most")]
    heads[0] = f"{heads[0]}, by"
    yield f"| sigma | noise | {' | '.join(heads)} |"
    yield f"|{' --- |' * (2 + len(heads))}"
    for sigma in SIGMAS:
        found = [text for under in UNDER for text in _three(number(rows, under, sigma), under)]
        yield f"| {sigma:g} | {CLIP * sigma:g} | {' | '.join(found)} |"


def _three(found: Number | None, under: str) -> tuple[str, str, str]:
    if found is None:
        return "not measured", "", ""
    by = f", `{found.who}`" if under == "asr" else ""
    value = f"{found.value:.{digits(under)}f} [{found.low:.{digits(under)}f}, {found.high:.{digits(under)}f}]{by}"
    bound = "none" if found.bound is None else f"{found.bound:.{digits(under)}f}"
    return f"**{value}**" if found.leaks else value, f"{found.guess:.{digits(under)}f}", bound


def digits(under: str) -> int:
    """Return how many decimals a number has: identification among many is a small share."""
    return 3 if under == "identified" else 2


def _attacks(rows: pd.DataFrame) -> Iterator[str]:
    """Yield the table of each attack's ASR and of its RMSE on the face that is shown."""
    yield f"| attack | {' | '.join(f'{sigma:g}' for sigma in SIGMAS)} |"
    yield f"|{' --- |' * (1 + len(SIGMAS))}"
    for what in PICTURES:
        found = [rows_at(rows, sigma, what) for sigma in SIGMAS]
        shown = [
            "not measured" if at.empty else f"{at['asr'].iloc[0]:.2f}; {at['rmse'].iloc[0]:.3f}; {at['face_rmse'].iloc[0]:.3f}"
            for at in found
        ]
        yield f"| `{what}` | {' | '.join(shown)} |"


def _found(rows: pd.DataFrame) -> Iterator[str]:
    """Yield what the numbers show, and whether one lies above its bound."""
    for under, title in UNDER.items():
        each = {sigma: number(rows, under, sigma) for sigma in SIGMAS}
        more = [f"{sigma:g}" for sigma, found in each.items() if found is not None and found.leaks]
        less = [f"{sigma:g}" for sigma, found in each.items() if found is not None and not found.leaks]
        empty = [f"{s:g}" for s, n in each.items() if n is not None and n.bound is not None and n.bound >= NOTHING]
        yield (
            f"- {title}: more than a guess at sigma {', '.join(more) or 'nowhere'}; not at {', '.join(less) or 'no other'}. "
            f"The bound forbids hardly anything at {', '.join(empty) or 'none'}."
        )
    broken = rows[rows["violated"].fillna("") != ""]
    above = "; ".join(f"{row['row']} ({row['violated']})" for _, row in broken.iterrows())
    yield f"- Significantly above its bound: {above or 'nothing'}, of {len(rows)} cells."


BLOCKS: dict[str, Callable[[pd.DataFrame], Iterator[str]]] = {
    "setting": _setting,
    "numbers": _numbers,
    "found": _found,
    "attacks": _attacks,
}
