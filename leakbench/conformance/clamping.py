"""Scores are taken on pixels clamped to [0, 1]: what lies beyond is shown as black or white, whatever a search left there."""

import numpy as np

from leakbench.conformance.case import Case, case
from leakbench.conformance.known import Close
from leakbench.conformance.pictures import TOLERANCES, black_and_white, reference, turned

__all__ = ["cases"]


def cases() -> tuple[Case, ...]:
    """Return one case of each measure of pixels."""
    truth = black_and_white(3, 1, seed=40)
    within = turned(truth, [[1 / 16], [1 / 4], [9 / 16]])
    beyond = np.random.default_rng(41).uniform(0, 6, within.shape)
    answer = np.where(within > 0.5, 1 + beyond, -beyond).astype(np.float32)
    why = "Pixels of 7 and -5 are shown as white and black, and so they are scored."
    return tuple(
        case(f"{name}: clamped", why, truth, answer, {name: Close(reference(name, truth, within), tolerance)})
        for name, tolerance in TOLERANCES.items()
    )
