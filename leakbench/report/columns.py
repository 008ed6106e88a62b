"""Which columns the table of leakage points has: those of every run, for tables those of features and records,
and of an attacker that learns what it learned."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from leakbench.report.words import COLUMNS, Column, interval, number

__all__ = ["TABLE_COLUMNS", "columns"]

TABLE_COLUMNS = (
    Column(
        "features right",
        "Mean share of a record's features that are right, as TabLeak counts (Vero et al. 2023): a category if its largest column "
        "is the true one, a number if it is within 0.319 standard deviations. Records of a batch are matched by this measure, and "
        "an example without an answer counts as 0. The interval is Student's over batches.",
        lambda tap: interval(tap, "feature_accuracy"),
    ),
    Column(
        "random features",
        "The same for TabLeak's random baseline: every feature drawn by itself from the public records that know it.",
        lambda tap: number(tap.get("random_feature_accuracy")),
    ),
    Column(
        "null features",
        "The same for the null attacker's best guess from public records and the label. What lies below it has not leaked.",
        lambda tap: number(tap.get("null_feature_accuracy")),
    ),
    Column(
        "records right",
        "Share of records with all features right; the share of right features overstates how many people are rebuilt.",
        lambda tap: interval(tap, "record_match"),
    ),
    Column(
        "random records", "The same for the random baseline.", lambda tap: number(tap.get("random_record_match"), 3)
    ),
    Column("null records", "The same for the null attacker.", lambda tap: number(tap.get("null_record_match"), 3)),
)


LEARNED = (
    Column(
        "learned in",
        "What the attacker's learning took before its first answer, when it was learned, and from how many public examples; none "
        "of them is a victim. What was learned of the same network, defense and public examples before is used again.",
        lambda tap: f"{number(tap.get('fit_seconds'), 1)} s of {number(tap.get('fit_public'), 0)}",
    ),
)


def columns(summary: Mapping[str, Any]) -> tuple[Column, ...]:
    """Return the columns of a summary's table, as in the terminal; the leakage point stands before them."""
    learned = LEARNED if any(tap.get("fit_public") is not None for tap in summary["taps"].values()) else ()
    tabular = any(tap.get("random_feature_accuracy") is not None for tap in summary["taps"].values())
    return (*COLUMNS, *(TABLE_COLUMNS if tabular else ()), *learned)
