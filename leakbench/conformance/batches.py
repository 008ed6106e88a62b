"""In a batch each picture is rebuilt or not, by an answer of its own, wherever in the batch that answer stands."""

import numpy as np

from leakbench.conformance.case import Case, case
from leakbench.conformance.known import Close
from leakbench.conformance.pictures import black_and_white

__all__ = ["cases"]

REBUILT = np.array([[1.0, 0.0, 0.0], [0.0, 0.0, 0.0], [1.0, 1.0, 1.0], [0.0, 1.0, 0.0]])
"""5 of 12 pictures; of the batches 3 of 4 have any, 1 of 4 has all, and 1 of 4 has most."""

CYCLE = [1, 2, 0]


def cases() -> tuple[Case, ...]:
    """Return the cases of batches whose pictures came back perfect or not at all, so that any threshold decides alike."""
    return (*_order(), _one_answer_for_two(), _two_answers_for_one(), _batches())


def _order() -> tuple[Case, Case]:
    truth = black_and_white(2, 3, seed=120)
    answer = truth[:, CYCLE]
    each, one = np.ones((2, 3)), np.array(1.0)
    return (
        case(
            "order: success",
            "Perfect pictures in each other's places are all rebuilt.",
            truth,
            answer,
            {"success": Close(each, 0), "asr": Close(one, 1e-6)},
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
    return {"success": Close(np.full(2, 0.5), 1e-6), "asr": Close(np.array(0.5), 1e-6)}


def _batches() -> Case:
    victims, members = REBUILT.shape
    truth = black_and_white(victims, members, seed=123)
    answer = np.where(REBUILT[..., None, None, None] > 0, truth, 1 - truth)
    return case(
        "asr: pictures, not batches",
        "5 of 12 pictures are rebuilt; 3 of 4 batches have one of these, and 1 of 4 has all or most of its pictures rebuilt.",
        truth,
        answer,
        {"asr": Close(np.array(REBUILT.mean()), 1e-6), "success": Close(REBUILT, 1e-6)},
    )
