"""A batch may come back in any order: one picture of the answer goes to one of the truth, the right way round."""

import numpy as np

from leakbench.conformance.case import Case, case
from leakbench.conformance.known import Close, Known, Worse
from leakbench.conformance.pictures import TOLERANCES, WORST, Pictures, black_and_white, reference, turned

__all__ = ["cases"]

SWAP = np.array([[1, 0, 2], [0, 2, 1]])
CYCLE = np.array([[1, 2, 0], [2, 0, 1]])
INVERSE = CYCLE.argsort(1)


def cases() -> tuple[Case, ...]:
    """Return the cases of the order in a batch, judged by every measure of pixels that there is."""
    truth = black_and_white(2, 3, seed=80)
    # Every member is equally far off, so that a batch's mean is as good as its members' numbers.
    answer = turned(truth, [[1 / 16] * 3] * 2)
    known = _known(truth, answer)
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
        _two_copies(truth[:, :2]),
        _two_alike(truth[:, :2], black_and_white(2, 2, seed=81)),
    )


def _known(truth: Pictures, answer: Pictures) -> dict[str, Known]:
    """Return each measure of pixels in the truth's order, and what stands for all: mean and median agree."""
    values = {name: reference(name, truth, answer) for name in TOLERANCES}
    each: dict[str, Known] = {name: Close(v, TOLERANCES[name]) for name, v in values.items()}
    return each | {f"overall {name}": Close(np.array(v.mean()), TOLERANCES[name]) for name, v in values.items()}


def _ordered(pictures: Pictures, order: np.ndarray) -> Pictures:
    return np.stack([batch[places] for batch, places in zip(pictures, order, strict=True)])


def _two_copies(truth: Pictures) -> Case:
    """Return the case of an answer that is twice about the first of two pictures."""
    answer = np.repeat(turned(truth, [[1 / 16, 0]] * 2)[:, :1], 2, axis=1)
    why = "Two copies of one picture do not reconstruct the other, though each is near to some picture of the truth."
    return case("order: two copies", why, truth, answer, _worse_than(truth[:, :1], answer[:, :1]))


def _two_alike(truth: Pictures, unrelated: Pictures) -> Case:
    """Return the case of two pictures alike, and an answer halfway between them beside an unrelated one."""
    alike = truth.copy()
    pixels, like = truth[:, 0].reshape(len(truth), -1), alike[:, 1].reshape(len(truth), -1)
    like[:] = pixels
    like[:, :192] = 1 - pixels[:, :192]
    between = unrelated.copy()
    halfway = between[:, 1].reshape(len(truth), -1)
    halfway[:] = pixels
    halfway[:, :96] = 1 - pixels[:, :96]
    why = "One reconstructed picture does not count for two true ones, though it is the nearest to both."
    return case("order: two alike", why, alike, between, _worse_than(alike[:, :1], between[:, 1:]))


def _worse_than(truth: Pictures, answer: Pictures) -> dict[str, Worse]:
    """Return what is clearly worse than such answers, all equally good, alone."""
    return {
        name: Worse(
            float(reference(name, truth, answer).mean()) + WORST[name] * margin, WORST[name], "as if both were answered"
        )
        for name, margin in (("rmse", 0.05), ("psnr", 2.0), ("ssim", 0.2))
    }
