"""Pictures whose scores are known: black and white noise in which a share of the pixels is inverted."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from skimage.metrics import peak_signal_noise_ratio, structural_similarity

from leakbench.conformance.contract import Floats

__all__ = ["SHAPE", "TOLERANCES", "WORST", "Pictures", "black_and_white", "reference", "turned"]

Pictures = NDArray[np.float32]

SHAPE = (3, 32, 32)
"""The shape of one picture: colours, and a size that all peers accept."""

TOLERANCES = {"rmse": 1e-4, "psnr": 1e-2, "ssim": 0.05}
"""Tolerances for single precision, and for SSIM also for the border: only one case compares it with scikit-image."""

WORST = {"rmse": 1, "psnr": -1, "ssim": -1}
"""+1 if larger scores are worse, else -1."""


def black_and_white(victims: int, members: int, seed: int) -> Pictures:
    """Return (V, B, 3, 32, 32) of independent fair pixels, 0 or 1: two such pictures are at an RMSE of about .71."""
    return np.random.default_rng(seed).integers(0, 2, (victims, members, *SHAPE)).astype(np.float32)


def turned(pictures: Pictures, shares: Sequence[Sequence[float]]) -> Pictures:
    """Return black-and-white pictures (V, B, *s) with a share of the pixels inverted: the RMSE is the root of the share.

    The largest error is 1, so that an RMSE in units of it is right here, and only a case about its scale finds it out.
    """
    answer = pictures.copy()
    rng = np.random.default_rng(1)
    for victim, row in enumerate(shares):
        for member, share in enumerate(row):
            pixels = answer[victim, member].reshape(-1)
            places = rng.permutation(pixels.size)[: round(share * pixels.size)]
            pixels[places] = 1 - pixels[places]
    return answer


def reference(measure: str, truth: Pictures, answer: Pictures) -> Floats:
    """Return the known scores (V, B) of reconstructions in the truth's order and in [0, 1]; NaN for a missing one.

    Args:
        measure: `rmse`, by its definition; `psnr` and `ssim`, scikit-image's of a data range of 1, the latter with the window of
            Wang et al. 2004. In float64.
    """
    one = {"rmse": _rmse, "psnr": _psnr, "ssim": _ssim}[measure]
    pairs = zip(truth.astype(np.float64), answer.astype(np.float64), strict=True)
    return np.array([[one(t, a) if np.isfinite(a).all() else np.nan for t, a in zip(*p, strict=True)] for p in pairs])


def _rmse(truth: Floats, answer: Floats) -> float:
    return float(np.sqrt(np.square(answer - truth).mean()))


def _psnr(truth: Floats, answer: Floats) -> float:
    return float(peak_signal_noise_ratio(truth, answer, data_range=1))  # type: ignore[no-untyped-call]


def _ssim(truth: Floats, answer: Floats) -> float:
    options = {"gaussian_weights": True, "sigma": 1.5, "use_sample_covariance": False, "data_range": 1}
    return float(structural_similarity(truth, answer, channel_axis=0, **options))  # type: ignore[no-untyped-call]
