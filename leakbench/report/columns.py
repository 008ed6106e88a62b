"""Which columns the table of leakage points has: those of every run, for tables those of features and records,
and of an attacker that learns what it learned."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from leakbench.report.words import Tap, gives_fewer, interval, number

__all__ = ["COLUMNS", "PAGE_FIELDS", "PICTURE_COLUMNS", "TABLE_COLUMNS", "Column", "columns", "page_columns"]


@dataclass(frozen=True)
class Column:
    """One column of the table of leakage points: its heading, what it means, and its text for one point."""

    heading: str
    meaning: str
    text: Callable[[Tap], str]


def _plain(field: str, digits: int = 2) -> Callable[[Tap], str]:
    return lambda tap: number(tap.get(field), digits)


COLUMNS = (
    Column(
        "ASR [95% CI]",
        "Attack success rate: the share of attacked examples rebuilt to an RMSE of at most eta, where two different "
        "examples of this data set come that close once in a thousand pairs. A search that fails or diverges counts as "
        "a failure. The interval is Wilson's on one network. Over several networks it comes from the variance between their "
        "means. Members of one batch are not counted as independent.",
        lambda tap: interval(tap, "asr"),
    ),
    Column(
        "baseline ASR",
        "The same for the baseline guess: the best guess from public data and the victim's label, without any gradient. Only what "
        "lies above it has leaked.",
        _plain("null_asr"),
    ),
    Column(
        "RMSE",
        "Median root mean squared error of pixels or features in [0, 1]; lower is a better reconstruction. Of failed "
        "attacks it measures how the search ended, not protection: a higher RMSE than the baseline guess's protects no "
        "better than an equal one.",
        _plain("rmse", 4),
    ),
    Column("baseline RMSE", "Median RMSE of the baseline guess.", _plain("null_rmse", 4)),
    Column("PSNR", "Median peak signal-to-noise ratio in dB, capped at 100; higher is closer.", _plain("psnr", 1)),
    Column("SSIM", "Median structural similarity (Wang et al. 2004), 1 for equal pictures.", _plain("ssim")),
    Column(
        "LPIPS", "Median learned perceptual distance (Zhang et al. 2018), 0 for equal pictures.", _plain("lpips", 3)
    ),
    Column("label acc.", "Share of examples whose label the attacker names rightly.", _plain("label_accuracy")),
    Column(
        "identified",
        "Share of victims that the attacker picks out of a list of candidates, by the likelihood of what leaked, or by the nearest "
        "neighbour of the reconstruction where the attacker has evidence for it; it needs far less leakage than a picture.",
        _plain("identified"),
    ),
    Column(
        "label ranked",
        "Share of victims whose label comes first when all classes are ranked by public mean gradients, by an attacker who "
        "knows the defense, whatever the attack. To be read beside the share of the commonest class. Of a batch it is the label "
        "of the first example, which even who knows how many there are of each class cannot tell from its fellows'.",
        _plain("label_ranked"),
    ),
    Column(
        "iterations",
        "Median iterations until an example was rebuilt to within eta, to stay so.",
        _plain("iterations", 0),
    ),
)
"""As in the terminal; the leakage point stands before them."""

RECOGNISED = Column(
    "recognised (baseline)",
    "Share of attacked examples whose reconstruction is closer to its own original than to up to 1,000 other pictures of the "
    "data set, both by SSIM and by the RMSE of the high-passed pictures, scaled to equal contrast; in brackets the same share for "
    "the baseline guess. A person may recognise a picture whose RMSE is above eta.",
    lambda tap: f"{number(tap.get('recognised'))} ({number(tap.get('null_recognised'))})",
)

PICTURE_COLUMNS = (*COLUMNS[:2], RECOGNISED, *COLUMNS[2:])
"""Those of a run on pictures: recognition after the ASR and that of the baseline guess."""

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
        "baseline features",
        "The same for the best guess from public records and the label, without any gradient. What lies below it has not leaked.",
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
    Column("baseline records", "The same for the baseline guess.", lambda tap: number(tap.get("null_record_match"), 3)),
)

PAGE_COLUMNS = (
    Column(
        "member AUC",
        "How often the first example of a batch is ranked above a candidate that is not in the batch, by the likelihood of what "
        "leaked: the area under the curve of true against false positives of telling who took part. 0.5 is chance.",
        lambda tap: interval(tap, "member_auc"),
    ),
    Column(
        "member found",
        "Share of victims so told from those who are not in the batch that at most 1 % of these are taken for members: the true "
        "positive rate at a false positive rate of 1 %, which is what chance gives.",
        lambda tap: interval(tap, "member_tpr"),
    ),
    Column(
        "labels counted",
        "Mean share of a batch's labels that are counted right, by the expected share of each class given what leaked (classes "
        "by public mean gradients). The interval is Student's over batches.",
        lambda tap: interval(tap, "label_counts"),
    ),
    Column(
        "baseline counted",
        "The same by the public shares of the classes alone. What lies below it has not leaked.",
        lambda tap: number(tap.get("null_label_counts")),
    ),
)
"""What the page has beside the columns of the terminal, which has no room for more."""

PRECISION = Column(
    "precision",
    "The share of right answers among the answers that were given, whereas the ASR counts all examples.",
    _plain("precision"),
)
"""Of a server that lies, or where fewer answers were given than there are examples; in the terminal it stands under the table."""

PAGE_FIELDS = ("member_auc", "member_tpr", "label_counts", "null_label_counts", "attributes")
"""Fields of a leakage point that only the page shows, so that only there a reader misses them."""


LEARNED = (
    Column(
        "learned in",
        "What the attacker's learning took before its first answer, when it was learned, and from how many public examples; none "
        "of them is a victim. What was learned of the same network, defense and public examples before is used again.",
        lambda tap: f"{number(tap.get('fit_seconds'), 1)} s of {number(tap.get('fit_public'), 0)} public",
    ),
)


def columns(summary: Mapping[str, Any]) -> tuple[Column, ...]:
    """Return the columns of a summary's table, as in the terminal; the leakage point stands before them."""
    learned = LEARNED if any(tap.get("fit_public") is not None for tap in summary["taps"].values()) else ()
    tabular = any(tap.get("random_feature_accuracy") is not None for tap in summary["taps"].values())
    pictures = any(tap.get("recognised") is not None for tap in summary["taps"].values())
    return (*(PICTURE_COLUMNS if pictures else COLUMNS), *(TABLE_COLUMNS if tabular else ()), *learned)


def page_columns(summary: Mapping[str, Any]) -> tuple[Column, ...]:
    """Return the columns of the page's table: those of the terminal, and what else the rankings tell."""
    attributes = dict.fromkeys(name for tap in summary["taps"].values() for name in tap.get("attributes") or {})
    fewer = any(gives_fewer(summary, tap) for tap in summary["taps"].values())
    return (*columns(summary), *((PRECISION,) if fewer else ()), *PAGE_COLUMNS, *map(_attribute, attributes))


def _attribute(name: str) -> Column:
    meaning = (
        f"Share of victims whose {name} comes first when all its values are ranked by public mean gradients, by an attacker who "
        "knows the defense and not the label; in brackets how often the best constant guess is right, and what no attack is above."
    )

    def text(tap: Mapping[str, Any]) -> str:
        found = (tap.get("attributes") or {}).get(name)
        if not found:
            return "n/a"
        limit = "" if found["bound"] is None else f", at most {number(found['bound'])}"
        share = interval({"right": found["right"], "right_low": found["low"], "right_high": found["high"]}, "right")
        return f"{share} (baseline {number(found['null'])}{limit})"

    return Column(f"{name} ranked", meaning, text)
