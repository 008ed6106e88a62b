"""SSIM is that of Wang et al. (IEEE TIP 2004) with a data range of 1: scikit-image's on 100 pairs, and a closed form."""

import numpy as np

from leakbench.conformance.case import Case, case
from leakbench.conformance.known import Close
from leakbench.conformance.pictures import SHAPE, reference

__all__ = ["cases"]

PAIRS = 100


def cases() -> tuple[Case, ...]:
    """Return the cases of SSIM alone; of two flat pictures a and b it is (2ab + C1) / (a^2 + b^2 + C1), C1 = .0001."""
    rng = np.random.default_rng(30)
    contrast = np.linspace(0.05, 1, PAIRS).reshape(PAIRS, 1, 1, 1, 1)
    truth = (0.5 + contrast * rng.uniform(-0.5, 0.5, (PAIRS, 1, *SHAPE))).astype(np.float32)
    strength = rng.permutation(np.linspace(0, 0.5, PAIRS)).reshape(PAIRS, 1, 1, 1, 1)
    answer = np.clip(truth + strength * rng.uniform(-0.5, 0.5, truth.shape), 0, 1).astype(np.float32)
    flat, other = (np.ones((2, 1, *SHAPE), dtype=np.float32) * _levels(*levels) for levels in ((0, 0.5), (0.01, 0.51)))
    closed = np.array([[0.5], [(2 * 0.5 * 0.51 + 1e-4) / (0.5**2 + 0.51**2 + 1e-4)]])
    return (
        case(
            "ssim: scikit-image",
            f"As Wang et al. print it, over the windows within the picture: {PAIRS} pairs from faint to full contrast.",
            truth,
            answer,
            {"ssim": Close(reference("ssim", truth, answer), 1e-4)},
        ),
        case(
            "ssim: flat pictures",
            "Black compared with a grey of .01 is 1/2 by the formula; without a data range it is 0, with one of 2 it is .8.",
            flat,
            other,
            {"ssim": Close(closed, 1e-4)},
        ),
    )


def _levels(first: float, second: float) -> np.ndarray:
    return np.array([first, second], dtype=np.float32).reshape(2, 1, 1, 1, 1)
