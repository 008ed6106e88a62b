"""The box at the top of a results page: claim, verdict, evidence, caveat and command, a line each."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pandas as pd

from leakbench.core.leakage_points import listed
from leakbench.core.recipe import names, resolve
from leakbench.core.verdict_words import FAILED, INCONCLUSIVE, RECONSTRUCTS, VERDICTS
from leakbench.data.recipe import DatasetRecipe
from leakbench.measure.rates import ASR, IDENTIFIED
from leakbench.measure.statistics import networks_limit

__all__ = [
    "beyond_the_asr",
    "box_of",
    "caveats_of",
    "count_of",
    "evidence_of",
    "few_seeds",
    "few_victims",
    "leaks_counted",
    "not_covered",
    "part_of",
    "range_of",
    "without_leak",
]

FEW = 10
"""Number of victims below which a page has a caveat."""

LINES = ("Claim", "Verdict", "Evidence", "Caveat", "Command")


def box_of(claim: str, verdict: str, evidence: str, caveat: str, command: str) -> list[str]:
    """Return the box as lines of Markdown, with an empty line at the end.

    Args:
        claim: The claim or question that the page tests.
        verdict: The answer.
        evidence: Rows, victims, networks and seeds behind the answer.
        caveat: Why the answer may be wrong or too narrow; empty where nothing is known.
        command: The command that measures the rows.
    """
    texts = (claim, verdict, evidence, caveat or "None known.", f"`{command}`")
    shown = (" ".join(text.split()) for text in texts)
    return [*(f"> - **{name}:** {text}" for name, text in zip(LINES, shown, strict=True)), ""]


def leaks_counted(verdicts: Iterable[Any]) -> str:
    """Return how many rows have each leak verdict; empty where no row has one."""
    found = Counter(verdict for verdict in verdicts if isinstance(verdict, str))
    each = [f"`{word}` {found[word]}" for word in VERDICTS if found[word]]
    return f"Leak verdicts of {found.total()} rows: {', '.join(each)}." if each else ""


def evidence_of(rows: pd.DataFrame) -> str:
    """Return rows, victims, networks and seeds behind a page, as far as its rows state them."""
    cells = rows["cell"].nunique() if "cell" in rows else len(rows)
    many = count_of(len(rows), "row")
    parts = [many if cells == len(rows) else f"{many} of {count_of(cells, 'cell')}"]
    for column, word in (("victims", "victim"), ("networks", "network"), ("seeds", "seed")):
        if column in rows and rows[column].notna().any():
            unknown = int(rows[column].isna().sum())
            not_all = f" (not recorded for {count_of(unknown, 'row')})" if unknown else ""
            parts.append(
                f"{range_of(rows[column])} {word}{'' if range_of(rows[column]) == '1' else 's'} a row{not_all}"
            )
    if "scale" in rows and rows["scale"].notna().any():
        parts.append(f"scale {' and '.join(sorted(set(rows['scale'].dropna())))}")
    return f"{', '.join(parts)}."


def few_seeds(rows: pd.DataFrame, least: int) -> str:
    """Return the caveat that cells have fewer trainings than a verdict needs; empty where none has."""
    few = rows.loc[rows["seeds"].fillna(1) < least, "cell"].nunique() if "seeds" in rows else 0
    of = part_of(few, rows["cell"].nunique(), "cell")
    return f"{of} {'has' if few == 1 else 'have'} fewer than {least} trainings: no verdict follows." if few else ""


def without_leak(rows: pd.DataFrame) -> str:
    """Return the caveat that rows without a leak are not evidence of protection, with their number; empty without any."""
    found = Counter(rows["verdict"].dropna()) if "verdict" in rows else Counter[str]()
    words = [word for word in (INCONCLUSIVE, FAILED) if found[word]]
    failed = sum(found[word] for word in words)
    each = " and ".join(f"{found[word]:,} `{word}`" for word in words)
    are = f"{'is' if failed == 1 else 'are'} `{words[0]}`" if len(words) == 1 else f"show no leak, {each}"
    return f"{count_of(failed, 'row')} {are}, which does not show protection." if failed else ""


def beyond_the_asr(rows: pd.DataFrame) -> str:
    """Return the caveat that rows say `reconstructs` for another reason than their ASR; empty where none does."""
    if not {"verdict", ASR.name, ASR.baseline} <= set(rows):
        return ""
    other = int(((rows["verdict"] == RECONSTRUCTS) & (rows[ASR.name] <= rows[ASR.baseline])).sum())
    if not other:
        return ""
    are = "says" if other == 1 else "say"
    return (
        f"{count_of(other, 'row')} {are} `{RECONSTRUCTS}` at an ASR not above the baseline guess's: the verdict there rests "
        "on another measure, such as recognition."
    )


def _near_ends(rows: pd.DataFrame, noun: str) -> list[str]:
    """Return the caveat that intervals near 0 and 1 are for networks like the measured ones."""
    if "networks" not in rows:
        return []
    away, cells = 0.0, set[str]()
    for rate in (ASR, IDENTIFIED):
        known = rows.dropna(subset=[rate.name, "networks"]) if rate.name in rows else rows[:0]
        for cell, share, networks in zip(known["cell"], known[rate.name], known["networks"], strict=True):
            if (limit := networks_limit(float(share), int(networks))) is not None:
                away = max(away, limit if share < 0.5 else 1.0 - limit)
                cells.add(cell)
    if not cells:
        return []
    of = part_of(len(cells), rows["cell"].nunique(), noun)
    return [
        f"Intervals near 0 and 1 are for networks like the measured ones ({of}): over all networks, such a share can be up to "
        f"{away:.2f} away from 0 or 1."
    ]


def few_victims(rows: pd.DataFrame, every: bool = False) -> str:
    """Return the caveat that attacked cells have few victims; empty where none has.

    Args:
        rows: The rows of the page.
        every: Whether rows without a verdict about leaks count too.
    """
    attacked = rows[rows["victims"] > 0] if "victims" in rows else rows[:0]
    if not every:
        attacked = attacked[attacked["verdict"].notna()] if "verdict" in attacked else attacked[:0]
    few = attacked.loc[attacked["victims"] < FEW, "cell"].nunique() if len(attacked) else 0
    if not few:
        return ""
    of = part_of(few, attacked["cell"].nunique(), "cell")
    return f"{of} {'has' if few == 1 else 'have'} fewer than {FEW} victims: {'its' if few == 1 else 'their'} intervals are wide."


def count_of(number: int, noun: str) -> str:
    """Return a number with its noun, as "1 row" or "3 rows"."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def part_of(number: int, total: int, noun: str) -> str:
    """Return a part of a total, as "1 of 1 cell" or "1 of 3 cells"."""
    return f"{number:,} of {count_of(total, noun)}"


def range_of(numbers: pd.Series) -> str:
    """Return the number that all rows have, or the smallest and largest."""
    found = sorted({int(number) for number in numbers.dropna()})
    return " to ".join(f"{number:,}" for number in dict.fromkeys((found[0], found[-1])))


def _with_epsilons(rows: pd.DataFrame) -> set[str]:
    """Return the data sets of the rows with a valid epsilon."""
    columns = [name for name in ("epsilon_valid", "epsilon_tap") if name in rows]
    some = rows[rows[columns].notna().any(axis=1)] if columns else rows[:0]
    return set(some["dataset"]) if "dataset" in some else {json.loads(a)["dataset"] for a in some.get("asked", [])}


def not_covered(datasets: Iterable[str]) -> list[str]:
    """Return what no epsilon on these data sets of the catalog covers, a sentence each."""
    catalog, found = set(names("datasets")), dict[str, list[str]]()
    for name in sorted(set(datasets) & catalog):
        for what in resolve("datasets", DatasetRecipe, name)[1].preparations:
            found.setdefault(what, []).append(name)
    return [f"On {listed(on)}, {what[0].lower()}{what[1:]}, which no epsilon covers." for what, on in found.items()]


def caveats_of(stale: Mapping[str, Sequence[str]], rows: pd.DataFrame, alone: int = 0, noun: str = "cell") -> list[str]:
    """Return the caveats that follow from the rows, a sentence each.

    Args:
        stale: Names of stale cells by reason, as of `leakbench.study.stale.stale_names`.
        rows: All rows of the page.
        alone: Number of cells with several victims that were measured on one network or in one training.
        noun: What a cell is called, in the singular.
    """
    old = sum(map(len, stale.values()))
    of = part_of(old, rows["cell"].nunique(), noun)
    are = "is stale: it was" if old == 1 else "are stale: they were"
    found = [f"{of} {are} measured with an earlier version."] if old else []
    if alone:
        were, their = ("was", "its") if alone == 1 else ("were", "their")
        found.append(
            f"{count_of(alone, noun)} {were} measured on one network, so that {their} intervals do not cover other networks."
        )
    found += _near_ends(rows, noun)
    if "scale" in rows and (rows["scale"] == "quick").any():
        quick = rows.loc[rows["scale"] == "quick", "cell"].nunique()
        found.append(
            f"{count_of(quick, noun)} {'is' if quick == 1 else 'are'} smaller than the paper's (scale `quick`)."
        )
    found += not_covered(_with_epsilons(rows))
    if "changed" in rows and any(isinstance(text, str) and json.loads(text) for text in rows["changed"]):
        found.append("A trial: some numbers differ from the table's.")
    return found
