"""PSNR is of a data range of 1, whatever a picture's contrast; finite for a perfect picture; averaged, not added."""

import numpy as np

from leakbench.conformance.case import Case, case
from leakbench.conformance.known import Between, Close, Finite
from leakbench.conformance.pictures import SHAPE, black_and_white, reference, turned

__all__ = ["cases"]


def cases() -> tuple[Case, ...]:
    """Return the cases of PSNR alone."""
    rng = np.random.default_rng(20)
    contrast = np.linspace(0.1, 1, 20).reshape(20, 1, 1, 1, 1)
    faint = (0.5 + contrast * rng.uniform(-0.5, 0.5, (20, 1, *SHAPE))).astype(np.float32)
    noisy = np.clip(faint + rng.normal(0, 0.1, faint.shape), 0, 1).astype(np.float32)
    truth = black_and_white(2, 3, seed=21)
    perfect = turned(truth, [[0, 1 / 16, 1 / 16], [1 / 16, 1 / 16, 0]])
    others = reference("psnr", truth, turned(truth, [[1 / 16] * 3] * 2))
    beside = np.where([[True, False, False], [False, False, True]], np.nan, others)
    return (
        case(
            "psnr: scikit-image",
            "The data range is that of pixels, 1; not a picture's own contrast, nor the data's standard deviation.",
            faint,
            noisy,
            {"psnr": Close(reference("psnr", faint, noisy), 0.01)},
        ),
        case(
            "psnr: perfect picture",
            "One perfect picture has no noise to divide by; it is capped, and the rest of its batch keeps its numbers.",
            truth,
            perfect,
            {"psnr": Finite(beside, 0.01)},
        ),
        case(
            "psnr: mean with a perfect picture",
            "Two of six pictures are perfect, the others at 12.04 dB: averaged as infinity they would make any table infinite.",
            truth,
            perfect,
            {"overall psnr": Between(12.03, 200.0)},
        ),
        case(
            "psnr: mean, not sum",
            "Three pictures that are equally good are together as good as each, not three times as good.",
            truth,
            turned(truth, [[1 / 16] * 3] * 2),
            {"psnr": Close(others, 0.01)},
        ),
    )
