"""A victim without an answer is a failure that counts: in its own score, in the mean, and in the success rate."""

import numpy as np

from leakbench.conformance.case import Case, case
from leakbench.conformance.known import Close, Unanswered, Worse
from leakbench.conformance.pictures import TOLERANCES, WORST, Pictures, black_and_white, reference, turned

__all__ = ["cases"]


def cases() -> tuple[Case, ...]:
    """Return two cases of each measure of pixels, and two of success."""
    truth = black_and_white(4, 1, seed=60)
    answer = turned(truth, [[1 / 16], [0], [1 / 4], [9 / 16]])
    answer[1] = np.nan
    exact = truth.copy()
    exact[1] = np.nan
    measures = tuple(made for name in TOLERANCES for made in _measure(name, truth, answer))
    return (
        *measures,
        case(
            "success: no answer",
            "Who gave no answer did not succeed.",
            truth,
            exact,
            {"success": Close(np.array([[1.0], [0.0], [1.0], [1.0]]), 0)},
        ),
        case(
            "asr: no answer",
            "Of four victims three are rebuilt and one has no answer: .75 of four, not 1 of three.",
            truth,
            exact,
            {"asr": Close(np.array(0.75), 1e-6)},
        ),
    )


def _measure(name: str, truth: Pictures, answer: Pictures) -> tuple[Case, Case]:
    values, worst = reference(name, truth, answer), WORST[name]
    survivors = values[~np.isnan(values)]
    # Beyond the mean, the median and, of an RMSE, the root of the mean square of those that answered: whichever a scorer
    # takes shows whether the fourth was counted.
    middles = [survivors.mean(), np.median(survivors), *([np.sqrt(np.square(survivors).mean())] if worst > 0 else [])]
    limit = max(worst * middle for middle in middles) * worst
    return (
        case(
            f"{name}: no answer",
            "A missing answer keeps its place, without a number that flatters.",
            truth,
            answer,
            {name: Unanswered(values, worst, TOLERANCES[name])},
        ),
        case(
            f"{name}: mean with a failure",
            "A mean or median over the survivors gets better with every victim on whom the attack fails.",
            truth,
            answer,
            {f"overall {name}": Worse(float(limit), worst, "that of the three that answered", or_none=True)},
        ),
    )
