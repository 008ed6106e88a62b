"""Each example has its own number, taken beside its own truth: a batch's number hides who was reconstructed."""

from leakbench.conformance.case import Case, case
from leakbench.conformance.known import EachExample
from leakbench.conformance.pictures import TOLERANCES, black_and_white, reference, turned

__all__ = ["cases"]


def cases() -> tuple[Case, ...]:
    """Return one case of each measure of pixels."""
    truth = black_and_white(2, 2, seed=50)
    answer = turned(truth, [[1 / 16, 1 / 4], [9 / 64, 1 / 64]])
    why = "A success rate counts victims; one number for a batch does not show which of its victims was reconstructed."
    return tuple(
        case(
            f"{name}: each example", why, truth, answer, {name: EachExample(reference(name, truth, answer), tolerance)}
        )
        for name, tolerance in TOLERANCES.items()
    )
