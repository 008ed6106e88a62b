"""Columns of the table of leakage points, each declared once, for the terminal, the pages, LaTeX and notebooks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from leakbench.measure import measures
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
from leakbench.report.words import factors, gives_fewer, interval, number, spanned
from leakbench.storage.summary import Summary, Tap

__all__ = [
    "BASELINE",
    "BASELINE_FEATURES",
    "BATCH",
    "COLUMNS",
    "COUNTS",
    "FAILED",
    "OF_UPDATES",
    "PAGE_COLUMNS",
    "PAGE_FIELDS",
    "PICKED",
    "PICTURE_COLUMNS",
    "PRECISION_COLUMN",
    "RIGHT_FEATURES",
    "RMSE",
    "SUCCESS",
    "TABLE_COLUMNS",
    "VERDICT",
    "VICTIMS",
    "Column",
    "columns",
    "core_columns",
    "has_records",
    "page_columns",
    "with_values",
]


@dataclass(frozen=True)
class Column:
    """One column of the table of leakage points.

    Args:
        heading: Name of the measure.
        meaning: What it measures.
        text: Takes a leakage point; returns the value, or `n/a`.
        numeric: Whether the values are numbers, which are aligned at the right.
    """

    heading: str
    meaning: str
    text: Callable[[Tap], str]
    numeric: bool = True


def _plain(field: str, digits: int = 2) -> Callable[[Tap], str]:
    return lambda tap: number(tap.value(field), digits)


def _measured(measure: Measure) -> Column:
    return Column(measure.heading, measure.meaning, _plain(measure.name, measure.digits))


def _rate(rate: Rate) -> Column:
    return Column(rate.heading, rate.meaning, _plain(rate.name))


def _with_interval(rate: Rate) -> Callable[[Tap], str]:
    return lambda tap: interval(tap, rate.name)


def _count(field: str) -> Callable[[Tap], str]:
    return lambda tap: "n/a" if tap.value(field) is None else f"{tap.value(field):,}"


VERDICT = Column("verdict", "What the evidence shows.", lambda tap: tap.verdict, numeric=False)
SUCCESS = Column(f"{ASR.heading} [95% CI]", ASR.meaning, _with_interval(ASR))
BASELINE = Column(
    "baseline ASR",
    "ASR of the baseline guess: the best guess from public data and the victim's label, without any gradient. Only a rate "
    "above it shows a leak.",
    _plain(ASR.baseline),
)
RMSE, *CLOSENESS = map(_measured, MEASURES)
BASELINE_RMSE = Column("baseline RMSE", "Median RMSE of the baseline guess.", _plain(measures.RMSE.baseline, 4))
LABELS_INFERRED, PICKED, RANKED = map(_rate, (LABELS, IDENTIFIED, LABEL_RANKED))
RIGHT_FEATURES = Column(FEATURES.heading, FEATURES.meaning, _with_interval(FEATURES))
BASELINE_FEATURES = Column(
    "baseline features",
    "The same for the best guess from public records and the label, without any gradient. Only a share above it shows a leak.",
    _plain(FEATURES.baseline),
)
VICTIMS = Column("victims", "Number of victims under attack.", _count("victims"))
BATCH = Column(
    "batch",
    "Number of examples behind one leak: B; L x B for an update of L local iterations of B examples each; K x L x B for "
    "the sum of K such clients.",
    factors,
)
FAILED = Column(
    "failed", "Number of examples without an answer. Each counts as a failure of the attack.", _count("failures")
)

COLUMNS = (
    *(SUCCESS, BASELINE, RMSE, BASELINE_RMSE, *CLOSENESS, LABELS_INFERRED, PICKED, RANKED),
    Column(
        "iterations",
        "Median iterations after which the reconstruction of an example is within eta and remains there.",
        _plain("iterations", 0),
    ),
)
"""As in the terminal; the leakage point comes first."""

OF_UPDATES = (
    *(SUCCESS, BASELINE, RMSE, BASELINE_RMSE),
    *(column for column, measure in zip(CLOSENESS, MEASURES[1:], strict=True) if measure.of is not None),
    *(LABELS_INFERRED, PICKED),
)
"""Those of them that exist for an external update."""

PICTURE_COLUMNS = (
    *COLUMNS[:2],
    Column(
        RECOGNISED.heading,
        RECOGNISED.meaning,
        lambda tap: "n/a" if tap.recognised is None else f"{number(tap.recognised)} ({number(tap.null_recognised)})",
    ),
    *COLUMNS[2:],
)
"""Those of a run on pictures: recognition after the ASR and that of the baseline guess."""

TABLE_COLUMNS = (
    RIGHT_FEATURES,
    Column(
        "random features",
        "The same for TabLeak's random baseline: each feature is drawn independently from the public records that have it.",
        _plain(f"random_{FEATURES.name}"),
    ),
    BASELINE_FEATURES,
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
            if tap.fit_public is None
            else f"{number(tap.fit_seconds, 1)} s from {number(tap.fit_public, 0)} public"
        ),
    ),
)

COUNTS = (
    Column(
        "baseline ASR [95% CI]", "ASR of the baseline guess with its interval.", lambda tap: interval(tap, ASR.baseline)
    ),
    Column("eta", "RMSE up to which a reconstruction counts as a success.", _plain("eta", 4)),
    VICTIMS,
    Column("networks", "Number of networks over which the victims are spread.", _count("networks")),
    BATCH,
    FAILED,
    Column("candidates", "Number of candidates in each identification.", _count("candidates")),
    Column("seconds", "Time that the attack took at this leakage point.", _plain("seconds", 1)),
)
"""How the other columns were measured."""


def columns(summary: Summary) -> tuple[Column, ...]:
    """Return the columns of a summary's table, as in the terminal; the leakage point comes first."""
    learned = LEARNED if any(tap.fit_public is not None for tap in summary.taps.values()) else ()
    pictures = any(tap.recognised is not None for tap in summary.taps.values())
    return (*(PICTURE_COLUMNS if pictures else COLUMNS), *(TABLE_COLUMNS if has_records(summary) else ()), *learned)


def page_columns(summary: Summary) -> tuple[Column, ...]:
    """Return the columns of the page's table: those of the terminal, and those that only the page has room for."""
    attributes = dict.fromkeys(name for tap in summary.taps.values() for name in tap.attributes or {})
    fewer = any(gives_fewer(summary, tap) for tap in summary.taps.values())
    return (*columns(summary), *((PRECISION_COLUMN,) if fewer else ()), *PAGE_COLUMNS, *map(_attribute, attributes))


def has_records(summary: Summary) -> bool:
    """Return whether the examples of a summary are records of a table."""
    return any(tap.random_feature_accuracy is not None for tap in summary.taps.values())


def core_columns(summary: Summary) -> tuple[Column, ...]:
    """Return the four columns that stand next to the leakage point and its verdict, less those without any value."""
    if has_records(summary):
        return with_values((SUCCESS, RIGHT_FEATURES, BASELINE_FEATURES, PICKED), summary)
    return with_values((SUCCESS, BASELINE, PICKED, RMSE), summary)


def with_values(columns: tuple[Column, ...], summary: Summary) -> tuple[Column, ...]:
    """Return the columns that have a value at one leakage point or more."""
    taps = summary.taps.values()
    return tuple(column for column in columns if any(column.text(tap) != "n/a" for tap in taps))


def _attribute(name: str) -> Column:
    meaning = (
        f"Share of victims whose {name} comes first when an attacker that knows the defense but not the label ranks its values "
        "by public mean gradients; in brackets how often the best constant guess is right, and the bound on any attack."
    )

    def text(tap: Tap) -> str:
        found = (tap.attributes or {}).get(name)
        if not found:
            return "n/a"
        limit = "" if found["bound"] is None else f", at most {number(found['bound'])}"
        share = spanned(found["right"], found["low"], found["high"])
        return f"{share} (baseline {number(found['null'])}{limit})"

    return Column(f"{name} ranked", meaning, text)
