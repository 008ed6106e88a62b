"""Success is a decision by a threshold: a perfect answer is one, the negative of the picture is none."""

import numpy as np

from leakbench.conformance.case import Case, case
from leakbench.conformance.known import Close
from leakbench.conformance.pictures import black_and_white

__all__ = ["cases"]


def cases() -> tuple[Case, ...]:
    """Return the case of success alone, of one picture a victim."""
    truth = black_and_white(4, 1, seed=70)
    answer = truth.copy()
    answer[3] = 1 - answer[3]
    decided = np.array([[1.0], [1.0], [1.0], [0.0]])
    return (
        case(
            "success: decided",
            "Any threshold passes the picture itself and not its negative.",
            truth,
            answer,
            {"success": Close(decided, 0), "asr": Close(np.array(0.75), 1e-6)},
        ),
    )
