"""Labels that repeat in a batch are found as often as they are there, not once for all."""

import numpy as np

from leakbench.conformance.case import Case, case
from leakbench.conformance.known import Close
from leakbench.conformance.pictures import black_and_white

__all__ = ["cases"]


def cases() -> tuple[Case, ...]:
    """Return the case of labels alone: pictures are perfect and in order, so that by place and by count are the same."""
    truth = black_and_white(3, 3, seed=90)
    labels = ([[1, 1, 2], [1, 2, 2], [0, 1, 2]], [[1, 2, 2], [1, 1, 1], [0, 1, 2]])
    return (
        case(
            "labels: repeats",
            "Of 1, 1, 2 the answer 1, 2, 2 has two thirds; as sets the two would be the same.",
            truth,
            truth.copy(),
            {"label_accuracy": Close(np.array([2 / 3, 1 / 3, 1.0]), 1e-6)},
            labels,
        ),
    )
