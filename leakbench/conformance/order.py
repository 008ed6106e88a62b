"""A batch may come back in any order: one picture of the answer goes to one of the truth, the right way round."""

import numpy as np

from leakbench.conformance.case import Case, case
from leakbench.conformance.contract import Floats
from leakbench.conformance.known import Close, Worse
from leakbench.conformance.pictures import TOLERANCES, WORST, Pictures, black_and_white, reference, turned

__all__ = ["cases"]

SWAP = np.array([[1, 0, 2], [0, 2, 1]])
CYCLE = np.array([[1, 2, 0], [2, 0, 1]])
INVERSE = CYCLE.argsort(1)


def cases() -> tuple[Case, ...]:
    """Return the cases of the order in a batch, judged by whichever measure of pixels there is."""
    truth = black_and_white(2, 3, seed=80)
    # Every member is equally far off, so that a batch's mean is as good as its members' numbers.
    answer = turned(truth, [[1 / 16] * 3] * 2)
    known = {name: Close(reference(name, truth, answer), tolerance) for name, tolerance in TOLERANCES.items()}
    labels = np.array([[3, 3, 5], [1, 4, 4]])
    turned_labels = (labels.tolist(), np.take_along_axis(labels, CYCLE, 1).tolist())
    found: dict[str, Close] = {"label_accuracy": Close(np.ones((2, 3)), 1e-6)}
    return (
        case(
            "order: swap",
            "Two pictures in each other's place score as in their own.",
            truth,
            _ordered(answer, SWAP),
            known,
        ),
        case(
            "order: 3-cycle",
            "The inverse order undoes a swap but not a cycle of three: applied the wrong way round it scores others' pictures.",
            truth,
            _ordered(answer, CYCLE),
            known,
        ),
        case(
            "order: matched",
            "Picture m of the truth came back in the place where the inverse of the cycle has m.",
            truth,
            _ordered(answer, CYCLE),
            {"matched": Close(INVERSE.astype(np.float64), 0)},
        ),
        case(
            "order: labels",
            "Labels move with their pictures.",
            truth,
            _ordered(answer, CYCLE),
            found,
            turned_labels,
        ),
        _one_to_one(truth[:, :2]),
    )


def _ordered(pictures: Pictures, order: np.ndarray) -> Pictures:
    return np.stack([batch[places] for batch, places in zip(pictures, order, strict=True)])


def _one_to_one(truth: Pictures) -> Case:
    first = np.repeat(turned(truth, [[1 / 16, 0]] * 2)[:, :1], 2, axis=1)
    best = {name: _worst(reference(name, truth[:, :1], first[:, :1]), name) for name in ("rmse", "psnr")}
    return case(
        "order: one to one",
        "Two copies of the first picture are no answer for the second: scored by the nearest, both would look right.",
        truth,
        first,
        best,
    )


def _worst(best: Floats, name: str) -> Worse:
    worst = WORST[name]
    margin = {"rmse": 0.05, "psnr": 2.0}[name]
    return Worse(float(best.mean()) + worst * margin, worst, "about what the first picture alone has")
