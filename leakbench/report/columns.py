"""Columns of the table of leakage points: those of each run, of tables, of attacks that learn, and of the page alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from leakbench.measure.measures import MEASURES, Measure
from leakbench.measure.rates import (
    ASR,
    COUNTED,
    FEATURES,
    IDENTIFIED,
    LABEL_RANKED,
    LABELS,
    MEMBER_AUC,
    MEMBER_FOUND,
    PRECISION,
    RECOGNISED,
    RECORDS,
    Rate,
)
from leakbench.report.words import Tap, factors, gives_fewer, interval, number

__all__ = [
    "COLUMNS",
    "COUNTS",
    "PAGE_FIELDS",
    "PICTURE_COLUMNS",
    "TABLE_COLUMNS",
    "Column",
    "columns",
    "core_columns",
    "page_columns",
    "with_values",
]


@dataclass(frozen=True)
class Column:
    """One column of the table of leakage points.

    Args:
        heading: Name of the measure.
        meaning: What it measures.
        text: Value at one leakage point, or `n/a`.
    """

    heading: str
    meaning: str
    text: Callable[[Tap], str]


def _plain(field: str, digits: int = 2) -> Callable[[Tap], str]:
    return lambda tap: number(tap.get(field), digits)


def _measured(measure: Measure) -> Column:
    return Column(measure.heading, measure.meaning, _plain(measure.name, measure.digits))


def _rate(rate: Rate) -> Column:
    return Column(rate.heading, rate.meaning, _plain(rate.name))


def _with_interval(rate: Rate) -> Callable[[Tap], str]:
    return lambda tap: interval(tap, rate.name)


def _count(field: str) -> Callable[[Tap], str]:
    return lambda tap: "n/a" if tap.get(field) is None else f"{tap[field]:,}"


COLUMNS = (
    Column(f"{ASR.heading} [95% CI]", ASR.meaning, _with_interval(ASR)),
    Column(
        "baseline ASR",
        "ASR of the baseline guess: the best guess from public data and the victim's label, without any gradient. Only a rate "
        "above it shows a leak.",
        _plain(ASR.baseline),
    ),
    _measured(MEASURES[0]),
    Column("baseline RMSE", "Median RMSE of the baseline guess.", _plain("null_rmse", 4)),
    *map(_measured, MEASURES[1:]),
    *map(_rate, (LABELS, IDENTIFIED, LABEL_RANKED)),
    Column(
        "iterations",
        "Median iterations after which the reconstruction of an example is within eta and remains there.",
        _plain("iterations", 0),
    ),
)
"""As in the terminal; the leakage point comes first."""

PICTURE_COLUMNS = (
    *COLUMNS[:2],
    Column(
        RECOGNISED.heading,
        RECOGNISED.meaning,
        lambda tap: (
            "n/a"
            if tap.get(RECOGNISED.name) is None
            else f"{number(tap[RECOGNISED.name])} ({number(tap.get(RECOGNISED.baseline))})"
        ),
    ),
    *COLUMNS[2:],
)
"""Those of a run on pictures: recognition after the ASR and that of the baseline guess."""

TABLE_COLUMNS = (
    Column(FEATURES.heading, FEATURES.meaning, _with_interval(FEATURES)),
    Column(
        "random features",
        "The same for TabLeak's random baseline: each feature is drawn independently from the public records that have it.",
        _plain(f"random_{FEATURES.name}"),
    ),
    Column(
        "baseline features",
        "The same for the best guess from public records and the label, without any gradient. Only a share above it shows a leak.",
        _plain(FEATURES.baseline),
    ),
    Column(RECORDS.heading, RECORDS.meaning, _with_interval(RECORDS)),
    Column("random records", "The same for the random baseline.", _plain(f"random_{RECORDS.name}", 3)),
    Column("baseline records", "The same for the baseline guess.", _plain(RECORDS.baseline, 3)),
)

PAGE_COLUMNS = (
    *(Column(rate.heading, rate.meaning, _with_interval(rate)) for rate in (MEMBER_AUC, MEMBER_FOUND, COUNTED)),
    Column(
        "baseline counted",
        "The same by the public shares of the classes alone. Only a share above it shows a leak.",
        _plain(COUNTED.baseline),
    ),
)
"""Columns that only the page has; the terminal has no room for them."""

PRECISION_COLUMN = _rate(PRECISION)
"""For a malicious server, or where fewer answers were given than there are examples; the terminal prints it below the table."""

PAGE_FIELDS = (MEMBER_AUC.name, MEMBER_FOUND.name, COUNTED.name, COUNTED.baseline, "attributes")
"""Fields of a leakage point that only the page shows, so that only the page explains their absence."""


LEARNED = (
    Column(
        "learned in",
        "Time that the attacker's learning took before its first answer, and the number of public examples it learned from; no "
        "victim is one of them. What was learned before from the same network, defense and public examples is reused.",
        lambda tap: (
            "n/a"
            if tap.get("fit_public") is None
            else f"{number(tap.get('fit_seconds'), 1)} s from {number(tap['fit_public'], 0)} public"
        ),
    ),
)

COUNTS = (
    Column(
        "baseline ASR [95% CI]", "ASR of the baseline guess with its interval.", lambda tap: interval(tap, ASR.baseline)
    ),
    Column("eta", "RMSE up to which a reconstruction counts as a success.", _plain("eta", 4)),
    Column("victims", "Number of victims under attack.", _count("victims")),
    Column("networks", "Number of networks over which the victims are spread.", _count("networks")),
    Column(
        "batch",
        "Number of examples behind one leak: B; L x B for an update of L local iterations of B examples each; K x L x B for "
        "the sum of K such clients.",
        lambda tap: factors(tap) if tap.get("batch") is not None else "n/a",
    ),
    Column(
        "failed", "Number of examples without an answer. Each counts as a failure of the attack.", _count("failures")
    ),
    Column("candidates", "Number of candidates in each identification.", _count("candidates")),
    Column("seconds", "Time that the attack took at this leakage point.", _plain("seconds", 1)),
)
"""How the other columns were measured."""


def columns(summary: Mapping[str, Any]) -> tuple[Column, ...]:
    """Return the columns of a summary's table, as in the terminal; the leakage point comes first."""
    learned = LEARNED if any(tap.get("fit_public") is not None for tap in summary["taps"].values()) else ()
    tabular = any(tap.get("random_feature_accuracy") is not None for tap in summary["taps"].values())
    pictures = any(tap.get("recognised") is not None for tap in summary["taps"].values())
    return (*(PICTURE_COLUMNS if pictures else COLUMNS), *(TABLE_COLUMNS if tabular else ()), *learned)


def page_columns(summary: Mapping[str, Any]) -> tuple[Column, ...]:
    """Return the columns of the page's table: those of the terminal, and those that only the page has room for."""
    attributes = dict.fromkeys(name for tap in summary["taps"].values() for name in tap.get("attributes") or {})
    fewer = any(gives_fewer(summary, tap) for tap in summary["taps"].values())
    return (*columns(summary), *((PRECISION_COLUMN,) if fewer else ()), *PAGE_COLUMNS, *map(_attribute, attributes))


CORE = ("ASR [95% CI]", "baseline ASR", IDENTIFIED.heading, "RMSE")
TABLE_CORE = ("ASR [95% CI]", FEATURES.heading, "baseline features", IDENTIFIED.heading)
"""Headings of the columns that answer first, after the leakage point and the verdict: of pictures, and of tables."""


def core_columns(summary: Mapping[str, Any]) -> tuple[Column, ...]:
    """Return the four columns that stand next to the leakage point and its verdict, less those without any value."""
    all_of = {column.heading: column for column in columns(summary)}
    names = TABLE_CORE if FEATURES.heading in all_of else CORE
    return with_values(tuple(all_of[name] for name in names), summary)


def with_values(columns: tuple[Column, ...], summary: Mapping[str, Any]) -> tuple[Column, ...]:
    """Return the columns that have a value at one leakage point or more."""
    taps = summary["taps"].values()
    return tuple(column for column in columns if any(column.text(tap) != "n/a" for tap in taps))


def _attribute(name: str) -> Column:
    meaning = (
        f"Share of victims whose {name} comes first when an attacker that knows the defense but not the label ranks its values "
        "by public mean gradients; in brackets how often the best constant guess is right, and the bound on any attack."
    )

    def text(tap: Mapping[str, Any]) -> str:
        found = (tap.get("attributes") or {}).get(name)
        if not found:
            return "n/a"
        limit = "" if found["bound"] is None else f", at most {number(found['bound'])}"
        share = interval({"right": found["right"], "right_low": found["low"], "right_high": found["high"]}, "right")
        return f"{share} (baseline {number(found['null'])}{limit})"

    return Column(f"{name} ranked", meaning, text)
