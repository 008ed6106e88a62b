"""Cases of whole batches: failures, success, order, labels, and arrays that must stay as they are."""

import numpy as np

from leakbench.conformance.case import Case, Close, Known, Unanswered, Worse, case
from leakbench.conformance.pictures import TOLERANCES, WORST, Pictures, black_and_white, reference, turned
from leakbench.measure.rates import ASR, LABELS

__all__ = ["batch_cases"]


def batch_cases() -> tuple[Case, ...]:
    """Return the cases of batches, in the order in which they are printed."""
    return *_failures(), _success(), *_orders(), *_rebuilt(), _labels(), _untouched()


def _failures() -> tuple[Case, ...]:
    """Return two cases per measure of pixels, and two of success: a victim without a reconstruction counts as a failure."""
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
            {ASR.column: Close(np.array([[1.0], [0.0], [1.0], [1.0]]), 0)},
        ),
        case(
            "asr: no answer",
            "Of four victims three are rebuilt and one has no answer: .75 of four, not 1 of three.",
            truth,
            exact,
            {ASR.name: Close(np.array(0.75), 1e-6)},
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


def _success() -> Case:
    """Return the case of success: at any threshold a perfect picture is one and the negative of the picture is not."""
    truth = black_and_white(4, 1, seed=70)
    answer = truth.copy()
    answer[3] = 1 - answer[3]
    decided = np.array([[1.0], [1.0], [1.0], [0.0]])
    return case(
        "success: decided",
        "Any threshold passes the picture itself and not its negative.",
        truth,
        answer,
        {ASR.column: Close(decided, 0), ASR.name: Close(np.array(0.75), 1e-6)},
    )


SWAP = np.array([[1, 0, 2], [0, 2, 1]])
CYCLE = np.array([[1, 2, 0], [2, 0, 1]])
INVERSE = CYCLE.argsort(1)


def _orders() -> tuple[Case, ...]:
    """Return the cases of the order in a batch, judged by every measure of pixels.

    A batch may be reconstructed in any order: one reconstructed picture is matched to one true picture.
    """
    truth = black_and_white(2, 3, seed=80)
    # Every member is equally far off, so that a batch's mean is as good as its members' numbers.
    answer = turned(truth, [[1 / 16] * 3] * 2)
    known = _known(truth, answer)
    labels = np.array([[3, 3, 5], [1, 4, 4]])
    turned_labels = (labels.tolist(), np.take_along_axis(labels, CYCLE, 1).tolist())
    found: dict[str, Close] = {LABELS.name: Close(np.ones((2, 3)), 1e-6)}
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
    """Return each measure of pixels in the truth's order, and its value over all examples: mean and median agree."""
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
    """Return the case of two pictures alike, and an answer halfway between them next to an unrelated one."""
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
    """Return limits that are clearly worse than the scores of these reconstructions, all equally good."""
    return {
        name: Worse(
            float(reference(name, truth, answer).mean()) + WORST[name] * margin, WORST[name], "as if both were answered"
        )
        for name, margin in (("rmse", 0.05), ("psnr", 2.0), ("ssim", 0.2))
    }


REBUILT = np.array([[1.0, 0.0, 0.0], [0.0, 0.0, 0.0], [1.0, 1.0, 1.0], [0.0, 1.0, 0.0]])
"""5 of 12 pictures; 3 of 4 batches have at least one, 1 of 4 has all, and 1 of 4 has most."""

ROTATED = [1, 2, 0]


def _rebuilt() -> tuple[Case, ...]:
    """Return the cases of batches whose pictures are reconstructed perfectly or not at all, at any threshold."""
    return (*_order(), _one_answer_for_two(), _two_answers_for_one(), _batches())


def _order() -> tuple[Case, Case]:
    truth = black_and_white(2, 3, seed=120)
    answer = truth[:, ROTATED]
    each, one = np.ones((2, 3)), np.array(1.0)
    return (
        case(
            "order: success",
            "Perfect pictures in each other's places are all rebuilt.",
            truth,
            answer,
            {ASR.column: Close(each, 0), ASR.name: Close(one, 1e-6)},
        ),
        case(
            "order: lpips",
            "Perfect pictures in each other's places have distance 0 for all weights.",
            truth,
            answer,
            {"lpips": Close(0 * each, 1e-5), "overall lpips": Close(0 * one, 1e-5)},
        ),
    )


def _one_answer_for_two() -> Case:
    """Return the case of two pictures that are the same; for which of them the answer is taken, is left open."""
    truth = black_and_white(2, 2, seed=121)
    truth[:, 1] = truth[:, 0]
    answer = truth.copy()
    answer[:, 0] = 1 - answer[:, 0]
    why = "The answer that is nearest to two pictures rebuilds one of them; the other's is the negative."
    return case("success: one answer for two", why, truth, answer, _half_of_each_batch())


def _two_answers_for_one() -> Case:
    truth = black_and_white(2, 2, seed=122)
    answer = truth[:, [0, 0]]
    why = "Two copies of one picture rebuild that picture, not also the other."
    return case("success: two answers for one", why, truth, answer, _half_of_each_batch())


def _half_of_each_batch() -> dict[str, Close]:
    return {ASR.column: Close(np.full(2, 0.5), 1e-6), ASR.name: Close(np.array(0.5), 1e-6)}


def _batches() -> Case:
    victims, members = REBUILT.shape
    truth = black_and_white(victims, members, seed=123)
    answer = np.where(REBUILT[..., None, None, None] > 0, truth, 1 - truth)
    return case(
        "asr: pictures, not batches",
        "5 of 12 pictures are rebuilt; 3 of 4 batches have one of these, and 1 of 4 has all or most of its pictures rebuilt.",
        truth,
        answer,
        {ASR.name: Close(np.array(REBUILT.mean()), 1e-6), ASR.column: Close(REBUILT, 1e-6)},
    )


def _labels() -> Case:
    """Return the case of labels that repeat in a batch: each counts as often as it occurs.

    Pictures are perfect and in order, so that labels by position and by count agree.
    """
    truth = black_and_white(3, 3, seed=90)
    labels = ([[1, 1, 2], [1, 2, 2], [0, 1, 2]], [[1, 2, 2], [1, 1, 1], [0, 1, 2]])
    return case(
        "labels: repeats",
        "Of 1, 1, 2 the answer 1, 2, 2 has two thirds; as sets the two would be the same.",
        truth,
        truth.copy(),
        {LABELS.name: Close(np.array([2 / 3, 1 / 3, 1.0]), 1e-6)},
        labels,
    )


def _untouched() -> Case:
    """Return the case of the arrays themselves; `untouched` is 1 where the scorer changed none of them."""
    truth = black_and_white(2, 3, seed=100)
    answer = turned(truth, [[1 / 16] * 3] * 2)[:, [1, 2, 0]] * 3 - 1
    return case(
        "truth: untouched",
        "What was clamped, reordered or made noisy in place is not what the next measure, or the gallery, should see.",
        truth,
        answer,
        {"untouched": Close(np.array(1.0), 0)},
    )
