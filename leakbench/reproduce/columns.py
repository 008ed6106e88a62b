"""Columns of each kind of page, and their meanings."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import pandas as pd

from leakbench.core.scripts import in_table, untagged
from leakbench.core.words import epsilon_text
from leakbench.measure import measures, rates
from leakbench.study.rows import Row

__all__ = ["COLUMNS", "WITHOUT_LEAKS", "Column", "legend_of", "measures_of", "text_of", "without_an_answer"]

OF_PAIRS = ", which two different {} of the data set reach once in a thousand pairs"
"""Definition of eta for a kind of examples, unless the table has its own threshold of success."""

OF_ONE = ("seer", "fishing", "fishing_feature")
"""Attacks that reconstruct at most one example of a batch."""


@dataclass(frozen=True)
class Column:
    """A heading, the function that shows a row, and the meaning where the heading is not enough."""

    heading: str
    show: Callable[[Row], str]
    meaning: str = ""


def legend_of(columns: Iterable[Column], thresholds: set[float | None]) -> list[str]:
    """Return the line of each meaning.

    Args:
        columns: The columns that a page shows.
        thresholds: The thresholds of success of the table's cells; None for that of the data set.
    """
    lines = [f"- {column.heading}: {column.meaning}." for column in columns if column.meaning]
    own = sorted(f"{threshold:g}" for threshold in thresholds if threshold is not None)
    if not own:
        return lines
    for kind in ("examples", "sentences"):
        lines = [line.replace(OF_PAIRS.format(kind), "") for line in lines]
    eta = f"- eta: the threshold of success; {' or '.join(own)} in this table"
    return [*lines, f"{eta}{', and that of the data set in other rows' if None in thresholds else ''}."]


def text_of(value: Any, digits: int = 2) -> str:
    """Return a number for the page, `-` for none."""
    return "-" if value is None or pd.isna(value) else f"{value:.{digits}f}"


def epsilon_cell(value: Any) -> str:
    """Return an epsilon for the page, `-` for none."""
    return "-" if value is None or pd.isna(value) else epsilon_text(value, ".3f")


def measures_of(row: Row, columns: str) -> str:
    """Return the line that reports a measured row of such a page."""
    if columns == "cost":
        return f"{text_of(row['cost_ratio'])} times none's"
    if columns == "accuracy":
        return f"accuracy {text_of(row['trained_accuracy'], 3)}, {row['wall_minutes']} min"
    return f"ASR {text_of(row[rates.ASR.name])}, RMSE {text_of(row[measures.RMSE.name], 3)}, {row['minutes']} min"


def number(key: str, digits: int = 2) -> Callable[[Row], str]:
    """Return a function that shows a field of a row."""
    return lambda row: text_of(row.get(key), digits)


def epsilon(key: str) -> Callable[[Row], str]:
    """Return a function that shows an epsilon of a row."""
    return lambda row: epsilon_cell(row.get(key))


def minutes(row: Row) -> str:
    """Show the minutes of a row's cells, and its devices if one is a GPU."""
    told = row.get("versions")
    device = json.loads(told).get("device") if isinstance(told, str) else None
    return text_of(row.get("wall_minutes"), 1) + (f" on {device}" if device else "")


def interval(key: str, digits: int = 2) -> Callable[[Row], str]:
    """Return a function that shows a share with its 95 % interval."""
    ends = [f"{key}_low", f"{key}_high"]
    return lambda row: (
        "-"
        if pd.isna(row.get(key))
        else f"{text_of(row[key], digits)} [{', '.join(text_of(row[end], digits) for end in ends)}]"
    )


def trained(row: Row) -> str:
    """Show the accuracy with its interval, and how many networks diverged: no answer of such a one is finite, and none right."""
    lost = row.get("diverged")
    said = f" ({lost:.0f} of {row['seeds']:.0f} diverged)" if lost and not pd.isna(lost) else ""
    return f"{interval('trained_accuracy', 3)(row)}{said}"


def without_an_answer(rows: pd.DataFrame) -> list[str]:
    """Return the line on rows with an accuracy of 0 that do not count the trainings that diverged; empty without such rows."""
    lost = rows.reindex(columns=["cell", "trained_accuracy", "diverged"])
    lost = lost[(lost["trained_accuracy"] == 0) & lost["diverged"].isna()]
    names = untagged("; ".join(dict.fromkeys(lost["cell"])))
    return (
        [f"An accuracy of 0 is that of a network that diverged, so that no output is finite: {names}.", ""]
        if names
        else []
    )


def yes(key: str) -> Callable[[Row], str]:
    """Return a function that shows 1 as yes and 0 as no."""
    return lambda row: "-" if pd.isna(row.get(key)) else "yes" if row[key] else "no"


def recognised(row: Row) -> str:
    """Show the share of recognised images with its interval, and the baseline guess's."""
    shown = interval(rates.RECOGNISED.name)(row)
    return shown if shown == "-" else f"{shown} ({text_of(row.get(rates.RECOGNISED.baseline))})"


def above_baseline(row: Row) -> str:
    """Show the excess of the ASR over the baseline guess, as a share of the largest possible excess."""
    if pd.isna(row[rates.ASR.name]) or pd.isna(
        row[rates.ASR.baseline]
    ):  # An attack that only ranks reconstructs nothing.
        return "-"
    return text_of((row[rates.ASR.name] - row[rates.ASR.baseline]) / (1 - row[rates.ASR.baseline]))


def size(row: Row) -> str:
    """Show victims, batch size and the limit of iterations."""
    return f"{row['victims']:.0f} x {row['batch']:.0f}, {text_of(row['limit'], 0)}"


def seconds_a_batch(row: Row) -> str:
    """Show the seconds of an attack and its rankings, for each batch."""
    return text_of(60 * row["minutes"] / row["victims"], 1)


def batches_with_one(row: Row) -> str:
    """Show the share of batches with a recovered example, with its interval, for an attack that reads one at most; else `-`."""
    name = rates.ASR.name
    if row.get("attack") not in OF_ONE or pd.isna(row.get(name)):
        return "-"
    share, low, high = (text_of(min(row["batch"] * row[key], 1)) for key in (name, f"{name}_low", f"{name}_high"))
    return f"{share} [{low}, {high}]"


def in_any_row(row: Row) -> str:
    """Show the share of examples that any row contains, with its interval where the row has one."""
    known = not pd.isna(row.get("in_any_row_low"))
    return interval("in_any_row")(row) if known else number("in_any_row")(row)


def identified(row: Row) -> str:
    """Show the identified share, with its interval where the row has one, and the number of candidates."""
    name, known = rates.IDENTIFIED.name, not pd.isna(row.get(rates.IDENTIFIED.low))
    share = interval(name)(row) if known else text_of(row[name])
    return f"{share} of {row['candidates']:,.0f}"


ROW = Column("row", lambda row: in_table(row["row"]))
ASR = Column(
    "ASR [95 % CI]",
    interval(rates.ASR.name),
    f"the share of images that are reconstructed to an RMSE of at most eta{OF_PAIRS.format('examples')}",
)
NULL_ASR = Column(
    "baseline ASR",
    number(rates.ASR.baseline),
    "the same for the best guess from public data and the label, without any gradient",
)
RECOGNISED = Column(
    "recognised [95 % CI] (baseline)",
    recognised,
    "the share of images that are closer to their original than to other images of the data set, by two distances of pictures, "
    "also above eta; in brackets that of the baseline guess",
)
RMSE = Column(
    "median RMSE",
    number(measures.RMSE.name, 3),
    "the median over all images, as for PSNR and SSIM; a failed one counts as the worst",
)
MEAN_RMSE = Column(
    "mean RMSE",
    number("rmse_mean", 3),
    "over networks, the quantity that papers print; - in rows that do not have it",
)
NULL_RMSE = Column("baseline RMSE", number(measures.RMSE.baseline, 3))
PSNR = Column("PSNR", number(measures.PSNR.name, 1))
ACCURACY = Column(
    "accuracy", number("accuracy"), "the accuracy of the attacked network in training; none at random weights"
)
IDENTIFIED = Column(
    "ranking identifies",
    identified,
    "how often an adaptive ranking of so many candidates picks the first example of each victim; it is independent of the "
    "attack of the row",
)
SIZE = Column(
    "victims x batch, limit", size, "number of victims, batch size, and largest number of iterations of a search"
)

ASR_BOUND = Column(
    "ASR bound",
    number(rates.ASR.bound),
    "the largest ASR that the noise allows any attack, given that of the baseline guess",
)
IDENTIFIED_BOUND = Column(
    "its bound", number(rates.IDENTIFIED.bound, 3), "the largest share that the noise allows any ranking"
)
VERDICT = Column("verdict", lambda row: in_table(row.get("verdict", "-")))

TEXT_ASR = Column(
    "ASR [95 % CI]",
    interval(rates.ASR.name),
    f"the share of sentences that are reconstructed to an edit distance of at most eta{OF_PAIRS.format('sentences')}",
)

COLUMNS: dict[str, tuple[Column, ...]] = {
    "accuracy": (
        ROW,
        Column("accuracy claimed", number("claimed_accuracy", 3)),
        Column("accuracy aimed at", number("aim", 3)),
        Column(
            "accuracy [95 % CI]",
            trained,
            "on the test examples after the last round; the interval is over seeds, for one seed over test examples",
        ),
        Column("rounds", number("rounds", 0)),
        Column("seeds", number("seeds", 0)),
        Column("epsilon claimed", epsilon("epsilon_claimed"), "by the recipe's own formula"),
        Column(
            "epsilon valid",
            epsilon("epsilon_valid"),
            "against an observer of the released models; none without a guarantee",
        ),
        Column("scale", lambda row: in_table(row.get("scale", "-"))),
        Column("minutes", minutes, "for all seeds, on two shared cores unless a GPU is named"),
    ),
    "cost": (
        ROW,
        Column("times none's, claimed", number("claimed_cost_ratio")),
        Column(
            "times none's [95 % CI]",
            interval("cost_ratio"),
            "processor time of a client's local iteration over an undefended one's, timed in turns; the median ratio of the "
            "repetitions (not the ratio of the medians), with its interval of order statistics",
        ),
        Column(
            "milliseconds", number("milliseconds"), "for a client's local iteration, with the server's work of a round"
        ),
        Column("none's", number("milliseconds_none"), "the same without a defense"),
        Column("repetitions", number("repeats", 0)),
    ),
    "points": (
        ROW,
        Column("resilient claimed", yes("claimed_resilient")),
        VERDICT,
        Column("mean RMSE claimed", number("claimed_rmse", 4)),
        MEAN_RMSE,
        RMSE,
        NULL_RMSE,
        ASR,
        NULL_ASR,
        RECOGNISED,
        Column("iterations claimed", number("claimed_iterations", 0)),
        Column(
            "iterations",
            number("iterations", 0),
            "the median number until a reconstruction stays within eta; none where fewer than half do",
        ),
        IDENTIFIED,
        SIZE,
        Column(
            "accuracy [95 % CI]",
            trained,
            "the test accuracy of the model trained with the defense, after the last round",
        ),
    ),
    "claims": (
        ROW,
        Column("ASR claimed", number("claimed_asr", 3)),
        ASR,
        NULL_ASR,
        Column("above baseline", above_baseline, "(ASR - baseline ASR) / (1 - baseline ASR)"),
        RECOGNISED,
        Column("mean RMSE claimed", number("claimed_rmse", 3)),
        MEAN_RMSE,
        RMSE,
        NULL_RMSE,
        PSNR,
        Column("SSIM", number(measures.SSIM.name)),
        ACCURACY,
        Column("labels right", number(rates.LABELS.name), "the share of labels that the attack infers correctly"),
        Column("iterations claimed", number("claimed_iterations", 1)),
        Column(
            "iterations",
            number("iterations", 0),
            "the median number until a reconstruction stays within eta; none where fewer than half do",
        ),
        IDENTIFIED,
        SIZE,
    ),
    "strongest": (
        ROW,
        ASR,
        NULL_ASR,
        ASR_BOUND,
        RMSE,
        NULL_RMSE,
        Column(
            "RMSE floor",
            number("rmse_floor", 3),
            "by Fisher information, for an attacker whose prior is the pixels' standard deviation alone; an attacker with a better "
            "prior can be below it",
        ),
        PSNR,
        ACCURACY,
        IDENTIFIED,
        IDENTIFIED_BOUND,
        Column(
            "label ranked",
            number(rates.LABEL_RANKED.name),
            "how often public mean gradients rank the label first; none if no victim's class has a public example",
        ),
        Column(
            "label bound",
            number("label_ranked_bound"),
            "the largest share that the noise allows, given the commonest label",
        ),
        SIZE,
    ),
    "targets": (
        ROW,
        Column(
            "target error [95 % CI]",
            interval(rates.TARGET_ERROR.name),
            "how far the inferred targets are from the true ones: the share of wrong labels, classes or pixels, for numbers in "
            "[0, 1] the mean difference, as a mean over the heads",
        ),
        Column(
            "baseline error",
            number(rates.TARGET_ERROR.baseline),
            "the same for the best constant guess from public targets",
        ),
        ASR,
        NULL_ASR,
        RMSE,
        NULL_RMSE,
        PSNR,
        IDENTIFIED,
        SIZE,
    ),
    "leaks": (
        ROW,
        VERDICT,
        Column(
            "epsilon valid",
            epsilon("epsilon_valid"),
            "for the whole training, against an observer of the released models",
        ),
        Column(
            "epsilon valid, here",
            epsilon("epsilon_tap"),
            "for the whole training, against an observer of the row's leakage point; none without a guarantee",
        ),
        ASR,
        NULL_ASR,
        ASR_BOUND,
        RMSE,
        NULL_RMSE,
        IDENTIFIED,
        IDENTIFIED_BOUND,
        SIZE,
    ),
    "texts": (
        ROW,
        VERDICT,
        Column(
            "ROUGE-1 [95 % CI]",
            interval(rates.ROUGE_1.name),
            "the mean F-measure of common words (Lin 2004); a sentence without a reconstruction counts as 0",
        ),
        Column("ROUGE-2", number(rates.ROUGE_2.name), "the same for pairs of neighbouring words"),
        Column(
            "exact [95 % CI]",
            interval(rates.EXACT.name),
            "the share of sentences that are reconstructed token for token",
        ),
        Column("tokens found", number(rates.TOKEN_RECALL.name), "the mean share of the true tokens, in any order"),
        Column("tokens at place", number(rates.TOKEN_ACCURACY.name)),
        Column("length right", number(rates.LENGTH.name), "the share of sentences with the right number of tokens"),
        Column("baseline ROUGE-1", number(rates.ROUGE_1.baseline), "the same for the best guess from public sentences"),
        TEXT_ASR,
        NULL_ASR,
        Column("labels right", number(rates.LABELS.name), "the share of labels that the attack infers correctly"),
        ACCURACY,
        Column(
            "epsilon valid, here",
            epsilon("epsilon_tap"),
            "for the whole training, against an observer of the row's leakage point; none without a guarantee",
        ),
        IDENTIFIED,
        IDENTIFIED_BOUND,
        Column(
            "batches x B",
            lambda row: f"{row['victims']:.0f} x {row['batch']:.0f}",
            "number and size of the attacked batches",
        ),
        Column("seconds a batch", seconds_a_batch, "for the attack and all rankings, on two shared cores"),
    ),
    "servers": (
        ROW,
        Column("recall claimed", number("claimed_recall", 3), "the paper's share of examples that any row contains"),
        Column(
            "in any row",
            in_any_row,
            "the same share here, by the truth, to an RMSE of at most eta: the most that rows alone can recover",
        ),
        Column(
            "recovered [95 % CI]",
            interval(rates.ASR.name),
            "the share of examples recovered to an RMSE of at most eta; interval by batch",
        ),
        Column(
            "batches with a recovered image [95 % CI]",
            batches_with_one,
            "for a server that reads at most one image of a batch: B times `recovered` and its interval",
        ),
        Column("verbatim [95 % CI]", interval(rates.VERBATIM.name), "to an RMSE of at most .001"),
        Column(
            "law",
            number("alone_expected", 3),
            "the expected share of examples that are alone in their bin: (1 - 1/k)^(n - 1)",
        ),
        Column(
            "patches read [95 % CI]",
            interval("patches_read"),
            "the share of the patches that are reconstructed to an RMSE of at most .01; interval by batch",
        ),
        Column(
            "law of patches",
            number("patches_alone", 3),
            "the expected share of patches that are alone in their bin, for k bins of a position and n images",
        ),
        Column(
            "precision",
            number(rates.PRECISION.name),
            "the share of the reconstructions that are correct; none without a reconstruction",
        ),
        RMSE,
        Column("RMSE <= .1", number("within_tenth"), "the share of examples recovered to an RMSE of at most .1"),
        Column(
            "picked of 500",
            number("picked"),
            "the share of examples whose reconstruction is nearer to them than to 499 others; an output that is matched to the "
            "nearest of B examples picks it by chance with B / (B + 499)",
        ),
        Column(
            "ideal server",
            number("asr_ideal"),
            "the expected share within eta for a server with an example's whole clipped gradient in one row",
        ),
        Column("its RMSE", number("rmse_ideal", 3)),
        NULL_ASR,
        NULL_RMSE,
        IDENTIFIED,
        IDENTIFIED_BOUND,
        Column(
            "batches x B",
            lambda row: f"{row['victims']:.0f} x {row['batch']:.0f}",
            "number and size of the attacked batches",
        ),
        Column("seconds a batch", seconds_a_batch, "for the attack and all rankings, on two shared cores"),
    ),
}
"""{kind of page: its columns}; a column without any value is left out."""

WITHOUT_LEAKS = ("accuracy", "cost")
"""Kinds of pages about training, whose cells have the smallest attack."""
