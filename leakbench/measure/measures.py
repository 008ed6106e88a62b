"""How close a reconstruction is to its example: every measure, declared once.

Rows have a column for each, a summary its median, a page of a run its heading and meaning. To add one, add it to `MEASURES`.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from dataclasses import dataclass

import numpy as np

from leakbench.measure import metrics

__all__ = ["EDIT_DISTANCE", "LPIPS", "MEASURES", "PSNR", "RMSE", "SSIM", "Measure", "deciding", "undefined"]


def _always(_: tuple[int, ...]) -> str:
    return ""


@dataclass(frozen=True)
class Measure:
    """A number for each reconstructed example, whose median over all examples is reported.

    Args:
        name: Column of the rows and field of a summary.
        heading: Heading in tables.
        meaning: What the median says, with unit and range, in one sentence.
        digits: Decimals in tables.
        lower_is_closer: Whether a smaller number is a better reconstruction. An example without an answer counts as the worst.
        of: Takes the reconstruction and the truth, each (V, M, *s), and returns (V, M) on the same device, NaN where it has no
            value; None for LPIPS, whose network is read from the user's files, and for texts, whose scores need the vocabulary.
        undefined: Returns why examples of a layout (`Dataset.layout`) have no value, or nothing.
        absent: Why it has no value where `undefined` names no reason; nothing where only failures can be the reason.
        baseline: Column and field of the same measure for the baseline guess; empty without one.
    """

    name: str
    heading: str
    meaning: str
    digits: int
    lower_is_closer: bool
    of: metrics.Score | None
    undefined: Callable[[tuple[int, ...]], str] = _always
    absent: str = ""
    baseline: str = ""

    @property
    def worst(self) -> float:
        """The value of an example without an answer in a median."""
        return np.inf if self.lower_is_closer else -np.inf


RMSE = Measure(
    "rmse",
    "RMSE",
    "Median root mean squared error of pixels or features in [0, 1]; lower is a better reconstruction. After a failed "
    "attack it measures how the search ended, not protection: an RMSE above the baseline guess's protects no "
    "better than an equal one.",
    4,
    True,
    metrics.rmse,
    metrics.no_pixels,
    baseline="null_rmse",
)

PSNR = Measure(
    "psnr",
    "PSNR",
    "Median peak signal-to-noise ratio in dB, capped at 100; higher is closer.",
    1,
    False,
    metrics.psnr,
    metrics.no_pixels,
)

SSIM = Measure(
    "ssim",
    "SSIM",
    "Median structural similarity (Wang et al. 2004), 1 for equal pictures.",
    2,
    False,
    metrics.ssim,
    metrics.no_ssim,
)

LPIPS = Measure(
    "lpips",
    "LPIPS",
    "Median learned perceptual distance (Zhang et al. 2018), 0 for equal pictures.",
    3,
    True,
    None,
    metrics.no_lpips,
    metrics.LPIPS_ABSENT,
)

MEASURES = (RMSE, PSNR, SSIM, LPIPS)
"""Every measure of a reconstructed picture or record, in the order of the columns. The first decides whether an attack succeeds."""

EDIT_DISTANCE = Measure(
    "edit_distance",
    "edit distance",
    "Median edit distance of the tokens of a sentence: insertions, deletions and changes, divided by the number of tokens of the "
    "longer sentence; 0 for equal sentences, at most 1. It decides whether an attack on a text succeeds.",
    3,
    True,
    None,
    baseline="null_edit_distance",
)


def deciding(columns: Container[str]) -> Measure:
    """Return the measure that decides whether an attack succeeds, from the columns of its rows: texts have an edit distance."""
    return EDIT_DISTANCE if EDIT_DISTANCE.name in columns else RMSE


def undefined(layout: tuple[int, ...]) -> dict[str, str]:
    """Return {measure: reason} for the measures that examples of this layout do not have; empty where all are defined.

    | layout of one example | RMSE, PSNR | SSIM | LPIPS |
    | --- | --- | --- | --- |
    | text (T, tokens) | no: tokens have no pixels | no | no |
    | tabular (F,) | yes | no: has no neighbouring pixels | no: not a picture |
    | picture (C, H, W), H or W < 11 | yes | no: smaller than its window | C = 1 or 3 |
    | picture (C, H, W) | yes | yes | C = 1 or 3 |
    """
    return {measure.name: why for measure in MEASURES if (why := measure.undefined(layout))}
