"""Which columns each kind of page has, and what they mean."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import pandas as pd

from leakbench.scripts import in_table

__all__ = ["COLUMNS", "Column", "Row", "measures_of", "text_of"]

Row: TypeAlias = dict[Any, Any]


@dataclass(frozen=True)
class Column:
    """A heading, what shows a row there, and what it means where the heading does not say it."""

    heading: str
    show: Callable[[Row], str]
    meaning: str = ""


def text_of(value: Any, digits: int = 2) -> str:
    """Return a number for the page, `-` for none."""
    return "-" if value is None or pd.isna(value) else f"{value:.{digits}f}"


def measures_of(row: Row, columns: str) -> str:
    """Return what is said of a row of such a page when it was measured."""
    if columns == "cost":
        return f"{text_of(row['cost_ratio'])} times none's"
    if columns == "accuracy":
        return f"accuracy {text_of(row['trained_accuracy'], 3)}, {row['wall_minutes']} min"
    return f"ASR {text_of(row['asr'])}, RMSE {text_of(row['rmse'], 3)}, {row['minutes']} min"


def number(key: str, digits: int = 2) -> Callable[[Row], str]:
    """Return what shows a field of a row."""
    return lambda row: text_of(row.get(key), digits)


def interval(key: str, digits: int = 2) -> Callable[[Row], str]:
    """Return what shows a share with its 95 % interval."""
    ends = [f"{key}_low", f"{key}_high"]
    return lambda row: (
        "-"
        if pd.isna(row.get(key))
        else f"{text_of(row[key], digits)} [{', '.join(text_of(row[end], digits) for end in ends)}]"
    )


def yes(key: str) -> Callable[[Row], str]:
    """Return what shows 1 as yes and 0 as no."""
    return lambda row: "-" if pd.isna(row.get(key)) else "yes" if row[key] else "no"


def above_baseline(row: Row) -> str:
    """Show which share of what the baseline guess leaves an attack finds."""
    return text_of((row["asr"] - row["null_asr"]) / (1 - row["null_asr"]))


def size(row: Row) -> str:
    """Show how much was attacked for how long at most."""
    return f"{row['victims']:.0f} x {row['batch']:.0f}, {text_of(row['limit'], 0)}"


def seconds_a_batch(row: Row) -> str:
    """Show how long an attack and the rankings beside it took."""
    return text_of(60 * row["minutes"] / row["victims"], 1)


def identified(row: Row) -> str:
    """Show how many were found, with the interval where the row has it, and among how many."""
    share = text_of(row["identified"]) if pd.isna(row.get("identified_low")) else interval("identified")(row)
    return f"{share} of {row['candidates']:,.0f}"


ROW = Column("row", lambda row: in_table(row["row"]))
ASR = Column(
    "ASR [95 % CI]",
    interval("asr"),
    "the share of pictures that come back to an RMSE of at most eta, which two different examples of the set reach once in a "
    "thousand pairs",
)
NULL_ASR = Column(
    "baseline ASR", number("null_asr"), "that of a guess from public data and the label, without any gradient"
)
RMSE = Column(
    "RMSE", number("rmse", 3), "the median over all pictures, as of PSNR and SSIM, a failed one counting as the worst"
)
NULL_RMSE = Column("baseline RMSE", number("null_rmse", 3))
PSNR = Column("PSNR", number("psnr", 1))
ACCURACY = Column(
    "accuracy", number("accuracy"), "that of the network which leaked, in training; none at first weights"
)
IDENTIFIED = Column(
    "ranking identifies",
    identified,
    "how often a ranking of so many candidates, told of the defense, finds the first picture of each victim; it "
    "belongs to no attack of the row",
)
SIZE = Column("victims x batch, limit", size, "what was attacked, and after how many iterations a search ends at most")

COLUMNS: dict[str, tuple[Column, ...]] = {
    "accuracy": (
        ROW,
        Column("accuracy claimed", number("claimed_accuracy", 3)),
        Column("accuracy aimed at", number("aim", 3)),
        Column(
            "accuracy [95 % CI]",
            interval("trained_accuracy", 3),
            "on the test examples after the last round: over the seeds, or of one seed by how many test examples there are",
        ),
        Column("rounds", number("rounds", 0)),
        Column("seeds", number("seeds", 0)),
        Column("epsilon claimed", number("epsilon_claimed", 3), "by the recipe's own formula"),
        Column(
            "epsilon valid", number("epsilon_valid", 3), "against who sees the released models; none where none follows"
        ),
        Column("scale", lambda row: in_table(row.get("scale", "-"))),
        Column("minutes", number("wall_minutes", 1), "of all seeds, on two shared cores"),
    ),
    "cost": (
        ROW,
        Column("times none's, claimed", number("claimed_cost_ratio")),
        Column(
            "times none's [95 % CI]",
            interval("cost_ratio"),
            "the processor time of a client's local iteration over an undefended one's, timed in turns; the median of "
            "the repetitions' ratios, which is not the ratio of the medians beside it, with its interval of order statistics",
        ),
        Column(
            "milliseconds", number("milliseconds"), "of a client's local iteration, with the server's work of a round"
        ),
        Column("none's", number("milliseconds_none"), "the same without a defense"),
        Column("repetitions", number("repeats", 0)),
    ),
    "points": (
        ROW,
        Column("resilient claimed", yes("claimed_resilient")),
        Column("verdict", lambda row: in_table(row.get("verdict", "-"))),
        Column("RMSE claimed", number("claimed_rmse", 4)),
        RMSE,
        NULL_RMSE,
        ASR,
        NULL_ASR,
        Column("iterations claimed", number("claimed_iterations", 0)),
        Column(
            "iterations",
            number("iterations", 0),
            "the median until which an answer came within eta to stay; none where fewer than half did",
        ),
        IDENTIFIED,
        SIZE,
        Column(
            "accuracy [95 % CI]",
            interval("trained_accuracy", 3),
            "of the network trained with the defense, on the test examples after the last round",
        ),
    ),
    "claims": (
        ROW,
        Column("ASR claimed", number("claimed_asr", 3)),
        ASR,
        NULL_ASR,
        Column("above baseline", above_baseline, "(ASR - baseline ASR) / (1 - baseline ASR)"),
        Column("RMSE claimed", number("claimed_rmse", 3)),
        RMSE,
        NULL_RMSE,
        PSNR,
        Column("SSIM", number("ssim")),
        ACCURACY,
        Column("labels right", number("label_accuracy"), "the share of labels that the attack names rightly"),
        Column("iterations claimed", number("claimed_iterations", 1)),
        Column(
            "iterations",
            number("iterations", 0),
            "the median until which an answer came within eta to stay; none where fewer than half did",
        ),
        IDENTIFIED,
        SIZE,
    ),
    "strongest": (
        ROW,
        ASR,
        NULL_ASR,
        Column(
            "ASR bound",
            number("asr_bound"),
            "what the noise allows any attack at most, given the baseline guess's rate",
        ),
        RMSE,
        NULL_RMSE,
        Column(
            "RMSE floor",
            number("rmse_floor", 3),
            "by Fisher information, for who knows the pixels' deviation beforehand and no more: who knows more of pictures may lie "
            "below it",
        ),
        PSNR,
        ACCURACY,
        IDENTIFIED,
        Column("its bound", number("identified_bound", 3), "what the noise allows any ranking at most"),
        Column(
            "label ranked",
            number("label_ranked"),
            "how often the label comes first by public mean gradients; none where no victim's class has a public example",
        ),
        Column("label bound", number("label_ranked_bound"), "what the noise allows of it, given the commonest label"),
        SIZE,
    ),
    "servers": (
        ROW,
        Column(
            "recall claimed", number("claimed_recall", 3), "the paper's: the share of the examples that any row holds"
        ),
        Column(
            "in any row",
            number("in_any_row"),
            "that share here, by the truth, to an RMSE of at most eta: what who answers with rows alone can recover at most",
        ),
        Column(
            "recovered [95 % CI]",
            interval("asr"),
            "the share of the examples that come back to an RMSE of at most eta, its interval by batch",
        ),
        Column("verbatim [95 % CI]", interval("verbatim"), "to an RMSE of at most .001"),
        Column(
            "law",
            number("alone_expected", 3),
            "which share is expected to come back verbatim, since alone in its bin: (1 - 1/k)^(n - 1)",
        ),
        Column(
            "precision", number("precision"), "which share of the answers given is right; none where none was given"
        ),
        RMSE,
        Column(
            "RMSE <= .1", number("within_tenth"), "the share of the examples that come back to an RMSE of at most .1"
        ),
        Column(
            "picked of 500",
            number("picked"),
            "the share of answers that are nearer to their example than to 499 others",
        ),
        Column(
            "ideal server",
            number("asr_ideal"),
            "the share within eta that a server expects who has an example's whole clipped gradient in one row",
        ),
        Column("its RMSE", number("rmse_ideal", 3)),
        NULL_ASR,
        NULL_RMSE,
        IDENTIFIED,
        Column("its bound", number("identified_bound", 3), "what the noise allows any ranking at most"),
        Column("batches x B", lambda row: f"{row['victims']:.0f} x {row['batch']:.0f}", "what was attacked"),
        Column("seconds a batch", seconds_a_batch, "of the attack and of all rankings beside it, on two shared cores"),
    ),
}
"""{what a page is about: its columns}; one in which no row has anything is left out."""
