"""Scoring reads: the truth and the answer are afterwards what they were."""

import numpy as np

from leakbench.conformance.case import Case, case
from leakbench.conformance.known import Close
from leakbench.conformance.pictures import black_and_white, turned

__all__ = ["cases"]


def cases() -> tuple[Case, ...]:
    """Return the case of arrays that stay as they are; `untouched` is 1 where they do."""
    truth = black_and_white(2, 3, seed=100)
    answer = turned(truth, [[1 / 16] * 3] * 2)[:, [1, 2, 0]] * 3 - 1
    return (
        case(
            "truth: untouched",
            "What was clamped, reordered or made noisy in place is not what the next measure, or the gallery, should see.",
            truth,
            answer,
            {"untouched": Close(np.array(1.0), 0)},
        ),
    )
