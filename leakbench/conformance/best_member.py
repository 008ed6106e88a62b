"""What stands for all examples stands for every member of a batch, not for the one that came out best."""

import numpy as np

from leakbench.conformance.case import Case, case
from leakbench.conformance.known import Close, Known, OneOf
from leakbench.conformance.pictures import TOLERANCES, black_and_white, reference, turned

__all__ = ["cases"]


def cases() -> tuple[Case, ...]:
    """Return one case of each measure of pixels: in both batches squared errors of 1/64, 1/8 and 3/8.

    Below 1/2, at which any other picture is, so that every answer is nearest to its own truth however it is matched.
    """
    truth = black_and_white(2, 3, seed=130)
    answer = turned(truth, [[1 / 64, 1 / 8, 3 / 8]] * 2)
    why = "One of three members is reconstructed well: no mean or median over all three is as good."
    mean_square = float(np.square(answer - truth).mean())
    of_mean_square = {"rmse": mean_square**0.5, "psnr": -10 * np.log10(mean_square)}
    made = []
    for name, tolerance in TOLERANCES.items():
        values = reference(name, truth, answer)
        middles = {"mean": values.mean(), "median": np.median(values)}
        if name in of_mean_square:
            middles["of the mean square"] = of_mean_square[name]
        known: Known = OneOf({of: Close(np.array(middle), tolerance) for of, middle in middles.items()})
        made.append(case(f"{name}: mean, not best member", why, truth, answer, {f"overall {name}": known}))
    return tuple(made)
