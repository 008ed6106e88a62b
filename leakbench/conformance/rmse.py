"""RMSE is a distance on the scale of the pixels: 0 for what is the same, and ten times as large for ten times the error."""

import numpy as np

from leakbench.conformance.case import Case, case
from leakbench.conformance.known import Close
from leakbench.conformance.pictures import SHAPE, black_and_white, reference

__all__ = ["cases"]


def cases() -> tuple[Case, ...]:
    """Return the cases of RMSE alone."""
    same = black_and_white(2, 1, seed=10)
    grey = np.full((4, 1, *SHAPE), 0.5, dtype=np.float32)
    error = np.random.default_rng(11).uniform(-0.5, 0.5, SHAPE)
    scales = np.array([1.0, 0.1, 0.01, 0.001]).reshape(4, 1, 1, 1, 1)
    scaled = (grey + scales * error).astype(np.float32)
    return (
        case(
            "rmse: scale",
            "An error a thousand times as small scores a thousandth; one measured in units of itself always scores the same.",
            grey,
            scaled,
            {"rmse": Close(reference("rmse", grey, scaled), 1e-6, relative=1e-3)},
        ),
        case(
            "rmse: perfect",
            "What is the same is at no distance, and that is a number.",
            same,
            same.copy(),
            {"rmse": Close(np.zeros((2, 1)), 1e-6)},
        ),
    )
