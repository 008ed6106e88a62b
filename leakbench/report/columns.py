"""Columns of the table of leakage points, each declared once, for the terminal, the pages, LaTeX and notebooks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from leakbench.measure import measures
from leakbench.measure.measures import MEASURES, Measure
from leakbench.measure.rates import (
    ASR,
    COUNTED,
    EXACT,
    FEATURES,
    IDENTIFIED,
    LABEL_RANKED,
    LABELS,
    MEMBER_AUC,
    MEMBER_FOUND,
    OF_TEXTS,
    PRECISION,
    RECOGNISED,
    RECORDS,
    ROUGE_1,
    ROUGE_2,
    ROUGE_L,
    TARGET_ERROR,
    Rate,
)
from leakbench.report.headline import is_above_baseline
from leakbench.report.words import factors, gives_fewer, interval, number, spanned
from leakbench.storage.summary import Summary, Tap

__all__ = [
    "BASELINE",
    "BASELINE_FEATURES",
    "BATCH",
    "COLUMNS",
    "COUNTS",
    "EDIT_DISTANCE",
    "FAILED",
    "PAGE_COLUMNS",
    "PAGE_FIELDS",
    "PICKED",
    "PICTURE_COLUMNS",
    "PRECISION_COLUMN",
    "RECOGNISED_COLUMN",
    "RIGHT_FEATURES",
    "RMSE",
    "SUCCESS",
    "TABLE_COLUMNS",
    "TARGET_COLUMNS",
    "TEXT_COLUMNS",
    "VERDICT",
    "VICTIMS",
    "PointColumn",
    "columns",
    "core_columns",
    "counts_recognition",
    "distance_columns",
    "has_records",
    "has_targets",
    "has_texts",
    "page_columns",
    "text_columns",
    "update_columns",
    "with_values",
]


@dataclass(frozen=True)
class PointColumn:
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


def _measured(measure: Measure) -> PointColumn:
    return PointColumn(measure.heading, measure.meaning, _plain(measure.name, measure.digits))


def _rate(rate: Rate) -> PointColumn:
    return PointColumn(rate.heading, rate.meaning, _plain(rate.name))


def _with_interval(rate: Rate) -> Callable[[Tap], str]:
    return lambda tap: interval(tap, rate.name)


def _count(field: str) -> Callable[[Tap], str]:
    return lambda tap: "n/a" if tap.value(field) is None else f"{tap.value(field):,}"


VERDICT = PointColumn("verdict", "What the evidence shows.", lambda tap: tap.verdict, numeric=False)
SUCCESS = PointColumn(f"{ASR.heading} [95% CI]", ASR.meaning, _with_interval(ASR))
BASELINE = PointColumn(
    "baseline ASR",
    "ASR of the baseline guess: the best guess from public data and the victim's label, without any gradient. Only a rate "
    "above it shows a leak.",
    _plain(ASR.baseline),
)
RMSE, *CLOSENESS = map(_measured, MEASURES)
BASELINE_RMSE = PointColumn("baseline RMSE", "Median RMSE of the baseline guess.", _plain(measures.RMSE.baseline, 4))
LABELS_INFERRED, PICKED, RANKED = map(_rate, (LABELS, IDENTIFIED, LABEL_RANKED))
RIGHT_FEATURES = PointColumn(FEATURES.heading, FEATURES.meaning, _with_interval(FEATURES))
BASELINE_FEATURES = PointColumn(
    "baseline features",
    "The same for the best guess from public records and the label, without any gradient. Only a share above it shows a leak.",
    _plain(FEATURES.baseline),
)
VICTIMS = PointColumn("victims", "Number of victims under attack.", _count("victims"))
BATCH = PointColumn(
    "batch",
    "Number of examples behind one leak: B; L x B for an update of L local iterations of B examples each; K x L x B for "
    "the sum of K such clients.",
    factors,
)
FAILED = PointColumn(
    "failed", "Number of examples without a reconstruction. Each counts as a failure of the attack.", _count("failures")
)

COLUMNS = (
    *(SUCCESS, BASELINE, RMSE, BASELINE_RMSE, *CLOSENESS, LABELS_INFERRED, PICKED, RANKED),
    PointColumn(
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

RECOGNISED_COLUMN = PointColumn(
    RECOGNISED.heading,
    RECOGNISED.meaning,
    lambda tap: "n/a" if tap.recognised is None else f"{number(tap.recognised)} ({number(tap.null_recognised)})",
)

PICTURE_COLUMNS = (*COLUMNS[:2], RECOGNISED_COLUMN, *COLUMNS[2:])
"""Those of a run on pictures: recognition after the ASR and that of the baseline guess."""

TABLE_COLUMNS = (
    RIGHT_FEATURES,
    PointColumn(
        "random features",
        "The same for TabLeak's random baseline: each feature is drawn independently from the public records that have it.",
        _plain(f"random_{FEATURES.name}"),
    ),
    BASELINE_FEATURES,
    PointColumn(RECORDS.heading, RECORDS.meaning, _with_interval(RECORDS)),
    PointColumn("random records", "The same for the random baseline.", _plain(f"random_{RECORDS.name}", 3)),
    PointColumn("baseline records", "The same for the baseline guess.", _plain(RECORDS.baseline, 3)),
)

TARGET_COLUMNS = (
    PointColumn(TARGET_ERROR.heading, TARGET_ERROR.meaning, _with_interval(TARGET_ERROR)),
    PointColumn(
        "baseline error",
        "The same for the best constant guess from public targets, without any gradient; for an update of your own, whose public "
        "examples have no targets, the guess of the first class, no label and numbers of 0.5. Only an error below it shows a leak.",
        _plain(TARGET_ERROR.baseline),
    ),
)
"""Those of a run whose networks answer with something else than a class."""

EDIT_DISTANCE = _measured(measures.EDIT_DISTANCE)

EDIT_COLUMNS = (
    EDIT_DISTANCE,
    PointColumn(
        "baseline edit distance",
        "Median edit distance of the baseline guess.",
        _plain(measures.EDIT_DISTANCE.baseline, 3),
    ),
    PointColumn(
        "nearest edit distance",
        "Median edit distance of the nearest of up to 1,000 public sentences. It can be found only with the original.",
        _plain(f"nearest_{measures.EDIT_DISTANCE.name}", 3),
    ),
)

ROUGES = (ROUGE_1, ROUGE_2, ROUGE_L)

TEXT_COLUMNS = (
    PointColumn(EXACT.heading, EXACT.meaning, _with_interval(EXACT)),
    *(PointColumn(rate.heading, rate.meaning, _plain(rate.name)) for rate in ROUGES),
    PointColumn(
        "baseline ROUGE-1",
        "The mean of ROUGE-1 for the baseline guess, without any gradient.",
        _plain(ROUGE_1.baseline),
    ),
    EDIT_DISTANCE,
)
"""Those of a run on texts, as in the terminal."""

TEXT_PAGE_COLUMNS = (
    *(
        PointColumn(rate.heading, rate.meaning, _with_interval(rate))
        for rate in OF_TEXTS
        if rate not in (EXACT, *ROUGES)
    ),
    *(
        PointColumn(
            f"baseline {rate.heading}", f"The mean of {rate.heading} for the baseline guess.", _plain(rate.baseline)
        )
        for rate in OF_TEXTS
        if rate is not ROUGE_1
    ),
    *EDIT_COLUMNS[1:],
    PointColumn(
        "nearest ROUGE-L", "Mean ROUGE-L of the same nearest public sentence.", _plain(f"nearest_{ROUGE_L.name}")
    ),
)
"""Columns of texts that only the page has."""

PAGE_COLUMNS = (
    *(PointColumn(rate.heading, rate.meaning, _with_interval(rate)) for rate in (MEMBER_AUC, MEMBER_FOUND, COUNTED)),
    PointColumn(
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
    PointColumn(
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
    PointColumn(
        "baseline ASR [95% CI]", "ASR of the baseline guess with its interval.", lambda tap: interval(tap, ASR.baseline)
    ),
    PointColumn(
        "eta", "RMSE, for texts edit distance, up to which a reconstruction counts as a success.", _plain("eta", 4)
    ),
    VICTIMS,
    PointColumn("networks", "Number of networks over which the victims are spread.", _count("networks")),
    BATCH,
    FAILED,
    PointColumn("candidates", "Number of candidates in each identification.", _count("candidates")),
    PointColumn("seconds", "Time that the attack took at this leakage point.", _plain("seconds", 1)),
)
"""How the other columns were measured."""


def columns(summary: Summary) -> tuple[PointColumn, ...]:
    """Return the columns of a summary's table, as in the terminal; the leakage point comes first."""
    learned = LEARNED if any(tap.fit_public is not None for tap in summary.taps.values()) else ()
    if has_texts(summary):
        return (SUCCESS, BASELINE, *TEXT_COLUMNS, LABELS_INFERRED, PICKED, RANKED, COLUMNS[-1], *learned)
    pictures = any(tap.recognised is not None for tap in summary.taps.values())
    plain = PICTURE_COLUMNS if pictures else COLUMNS
    targets = TARGET_COLUMNS if has_targets(summary) else ()
    return (*plain, *(TABLE_COLUMNS if has_records(summary) else ()), *targets, *learned)


def page_columns(summary: Summary) -> tuple[PointColumn, ...]:
    """Return the columns of the page's table: those of the terminal, and those that only the page has room for."""
    attributes = dict.fromkeys(name for tap in summary.taps.values() for name in tap.attributes or {})
    fewer = any(gives_fewer(summary, tap) for tap in summary.taps.values())
    texts = TEXT_PAGE_COLUMNS if has_texts(summary) else ()
    first = (*columns(summary), *texts, *((PRECISION_COLUMN,) if fewer else ()))
    return (*first, *PAGE_COLUMNS, *map(_attribute, attributes))


def has_records(summary: Summary) -> bool:
    """Return whether the examples of a summary are records of a table."""
    return any(tap.random_feature_accuracy is not None for tap in summary.taps.values())


def has_texts(summary: Summary) -> bool:
    """Return whether the examples of a summary are texts."""
    return any(tap.null_edit_distance is not None for tap in summary.taps.values())


def has_targets(summary: Summary) -> bool:
    """Return whether the networks of a summary answer with something else than a class or the next token."""
    return any(tap.null_target_error is not None for tap in summary.taps.values())


def distance_columns(summaries: Sequence[Summary]) -> tuple[PointColumn, ...]:
    """Return the columns of the distance that decides about success: RMSE, for texts the edit distance."""
    texts = {has_texts(summary) for summary in summaries}
    return tuple(column for column, kind in ((RMSE, False), (EDIT_DISTANCE, True)) if kind in texts)


def text_columns(summaries: Sequence[Summary]) -> tuple[PointColumn, ...]:
    """Return the columns of common words and of exact sentences; none without a run on texts."""
    return tuple(map(_rate, (ROUGE_1, EXACT))) if any(map(has_texts, summaries)) else ()


def update_columns(summary: Summary) -> tuple[PointColumn, ...]:
    """Return the columns that an external update may have."""
    if has_texts(summary):
        return (SUCCESS, BASELINE, *TEXT_COLUMNS, *EDIT_COLUMNS[1:], *OF_UPDATES[-2:])
    return (*OF_UPDATES[:2], *TARGET_COLUMNS, *OF_UPDATES[2:]) if has_targets(summary) else OF_UPDATES


def core_columns(summary: Summary) -> tuple[PointColumn, ...]:
    """Return the few columns that stand next to the leakage point and its verdict, less those without any value."""
    if has_targets(summary):
        return with_values((SUCCESS, BASELINE, *TARGET_COLUMNS, PICKED, RMSE), summary)
    if has_records(summary):
        return with_values((SUCCESS, RIGHT_FEATURES, BASELINE_FEATURES, PICKED), summary)
    if has_texts(summary):
        return with_values((SUCCESS, BASELINE, TEXT_COLUMNS[1], TEXT_COLUMNS[4], PICKED), summary)
    looks = (RECOGNISED_COLUMN,) if counts_recognition(summary) else ()
    return with_values((SUCCESS, BASELINE, *looks, PICKED, RMSE), summary)


def counts_recognition(summary: Summary) -> bool:
    """Return whether the verdict on a leakage point follows from recognition, and not from success."""
    return any(is_above_baseline(tap, RECOGNISED) and not is_above_baseline(tap, ASR) for tap in summary.taps.values())


def with_values(columns: tuple[PointColumn, ...], summary: Summary) -> tuple[PointColumn, ...]:
    """Return the columns that have a value at one leakage point or more."""
    taps = summary.taps.values()
    return tuple(column for column in columns if any(column.text(tap) != "n/a" for tap in taps))


def _attribute(name: str) -> PointColumn:
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

    return PointColumn(f"{name} ranked", meaning, text)
