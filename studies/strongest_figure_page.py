"""The page of `strongest_figure.py`: prose that is written by hand, around numbers that are written from the rows."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Iterator, Sequence

import pandas as pd
from strongest_figure_numbers import CLIP, PICTURES, SIGMAS, UNDER, Number, digits, number, rows_at

from leakbench.core.errors import InputError
from leakbench.core.scripts import markdown_table
from leakbench.report.bounds import NOTHING

__all__ = ["filled", "whole"]


def whole(page: str) -> str:
    """Return a page that has every block; raises InputError for another."""
    for name in BLOCKS:
        if not _block(name).search(page):
            raise InputError(
                f"strongest-attacker.md: no block '<!-- {name} -->' ... '<!-- end -->' to write numbers into"
            )
    return page


def _block(name: str) -> re.Pattern[str]:
    return re.compile(rf"(<!-- {name} -->\n).*?(<!-- end -->)", re.DOTALL)


def filled(page: str, rows: pd.DataFrame) -> str:
    """Return the page with new text between `<!-- NAME -->` and `<!-- end -->`, and the prose unchanged.

    Raises:
        InputError: For a page that lacks a block.
    """
    whole(page)
    for name, write in BLOCKS.items():
        text = "".join(f"{line}\n" for line in write(rows))
        page = _block(name).sub(rf"\g<1>{text}\g<2>", page)
    return page


def _setting(rows: pd.DataFrame) -> Iterator[str]:
    """Yield how many victims there are of what, and after how many iterations searches end."""
    of = {what: rows[rows["what"] == what] for what in (*PICTURES, "identification", "labels")}
    each = "; ".join(f"{_SHOWN.get(what, f'`{what}`')}: {_many(what, own)}" for what, own in of.items() if len(own))
    one = rows.iloc[0]
    eta = (
        f"A face counts as rebuilt at an RMSE of at most {one['eta']:.3f}; there are {one['public']:.0f} public faces."
    )
    yield textwrap.fill(f"{each[0].upper() + each[1:]}. {eta}", 132)


def _many(what: str, own: pd.DataFrame) -> str:
    victims = " or ".join(f"{many:,.0f}" for many in sorted(set(own["victims"])))
    most = " or ".join(f"{limit:,.0f}" for limit in sorted(set(own["limit"].dropna())))
    return f"{victims} victims" + (f", at most {most} iterations" if most and what != "labels" else "")


_SHOWN = {
    "identification": "identification of the victim, by `identification`",
    "labels": "the label, which `whitened` reads before its search begins",
}


def _numbers(rows: pd.DataFrame) -> Iterator[str]:
    """Yield the table of the numbers under the columns."""
    heads = [head for title in UNDER.values() for head in (f"{title} [95 % CI]", "a guess", "at most")]
    lines = []
    for sigma in SIGMAS:
        found = [text for under in UNDER for text in _three(number(rows, under, sigma), under)]
        lines.append([f"{sigma:g}", f"{CLIP * sigma:g}", *found])
    yield markdown_table(["sigma", "noise", *heads], lines)


def _three(found: Number | None, under: str) -> tuple[str, str, str]:
    if found is None:
        return "not measured", "", ""
    by = f", `{found.who}`" if under == "asr" else ""
    value = f"{found.value:.{digits(under)}f} [{found.low:.{digits(under)}f}, {found.high:.{digits(under)}f}]{by}"
    bound = "none" if found.bound is None else f"{found.bound:.{digits(under)}f}"
    return f"**{value}**" if found.leaks else value, f"{found.guess:.{digits(under)}f}", bound


def _attacks(rows: pd.DataFrame) -> Iterator[str]:
    """Yield the table of each attack's ASR and of its RMSE on the face that is shown."""
    lines = [[f"`{what}`", *(_scores(rows_at(rows, sigma, what)) for sigma in SIGMAS)] for what in PICTURES]
    yield markdown_table(["attack", *(f"{sigma:g}" for sigma in SIGMAS)], lines)


def _scores(row: pd.DataFrame) -> str:
    if row.empty:
        return "not measured"
    return f"{row['asr'].iloc[0]:.2f}; {row['rmse'].iloc[0]:.3f}; {row['face_rmse'].iloc[0]:.3f}"


def _found(rows: pd.DataFrame) -> Iterator[str]:
    """Yield what the numbers show, and whether one is above its bound."""
    for under, title in UNDER.items():
        at = {sigma: number(rows, under, sigma) for sigma in SIGMAS}
        more = [f"{sigma:g}" for sigma, found in at.items() if found is not None and found.leaks]
        less = [f"{sigma:g}" for sigma, found in at.items() if found is not None and not found.leaks]
        empty = [f"{s:g}" for s, n in at.items() if n is not None and n.bound is not None and n.bound >= NOTHING]
        where = f"more than a guess at sigma {', '.join(more) or 'nowhere'}; not at {', '.join(less) or 'no other'}"
        yield f"- {title.capitalize()}: {where}. The bound forbids hardly anything at {', '.join(empty) or 'none'}."
    alone = {what: [number(rows[rows["what"] == what], "asr", sigma) for sigma in SIGMAS] for what in PICTURES}
    each = "; ".join(f"`{what}` {_alone(found)}" for what, found in alone.items() if any(found))
    if each:
        yield f"- Faces rebuilt by each attack alone, more than a guess: {each}."
    broken = rows[rows["violated"].fillna("") != ""]
    above = "; ".join(f"{row['row']} ({row['violated']})" for _, row in broken.iterrows())
    yield f"- Significantly above its bound: {above or 'nothing'}, of {len(rows)} cells."


def _alone(found: Sequence[Number | None]) -> str:
    """Return at which noise one attack rebuilds more than a guess, and what it says where that is nowhere."""
    more = [f"{sigma:g}" for sigma, each in zip(SIGMAS, found, strict=True) if each is not None and each.leaks]
    if more:
        return f"at sigma {', '.join(more)}"
    if found[0] is None:
        return "nowhere"
    return "nowhere, not even undefended (that it fails behind a defense says nothing of the defense)"


BLOCKS: dict[str, Callable[[pd.DataFrame], Iterator[str]]] = {
    "setting": _setting,
    "numbers": _numbers,
    "found": _found,
    "attacks": _attacks,
}
