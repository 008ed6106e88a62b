"""Scores, thresholds and intervals of degenerate reconstructions and trials have their mathematical values."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from leakbench.core.errors import InputError
from leakbench.core.rng import generator
from leakbench.measure import metrics, statistics
from leakbench.measure.conspicuous import d_snr, lit_alone, rows_alike
from tests.reliability.tally import Tally

__all__ = ["try_measures"]

SIDES = {
    "a picture": (1, 16, 16),
    "a small picture": (1, 8, 8),
    "one pixel": (1, 1, 1),
    "in colour": (3, 16, 16),
    "a record": (5,),
}


def try_measures(tally: Tally, full: bool) -> None:
    """Try all of them; this takes little time."""
    for said, shape in SIDES.items():
        for kind in (torch.float32, torch.float16, torch.bfloat16, torch.float64):
            _pictures(tally, f"{said}, {kind}", shape, kind)
        _not_finite(tally, said, shape)
    _thresholds(tally)
    _intervals(tally)
    _conspicuous(tally)


def _pictures(tally: Tally, said: str, shape: tuple[int, ...], kind: torch.dtype) -> None:
    """Pairs of constant pictures: (reconstruction, truth) -> RMSE, PSNR, SSIM."""
    small = 0.01**2 / (1 + 0.01**2)
    stated = {(0.5, 0.5): (0.0, 100.0, 1.0), (0.0, 0.0): (0.0, 100.0, 1.0), (1.0, 0.0): (1.0, 0.0, small),
              (7.0, 1.0): (0.0, 100.0, 1.0), (-7.0, 1.0): (1.0, 0.0, small), (0.5, 0.0): (0.5, 6.0206, None)}  # fmt: skip
    for (answer, truth), (rmse, psnr, ssim) in stated.items():
        with tally.case(f"measures: {said}, {answer} throughout for {truth}"):
            a, t = (torch.full((2, 3, *shape), v, dtype=kind) for v in (answer, truth))
            _is(metrics.rmse(a, t), rmse)
            _is(metrics.psnr(a, t), psnr, 1e-3)
            windows = not metrics.no_ssim(shape)
            if ssim is not None:
                _is(metrics.ssim(a, t), ssim if windows else math.nan)
            order = metrics.match(a, t)
            if sorted(order[0].tolist()) != [0, 1, 2]:
                raise AssertionError(f"answers that are all the same are matched {order.tolist()}")


def _not_finite(tally: Tally, said: str, shape: tuple[int, ...]) -> None:
    for value in (math.nan, math.inf, -math.inf):
        with tally.case(f"measures: {said}, an answer with one coordinate of {value}"):
            truth = torch.full((1, 2, *shape), 0.5)
            answer = truth.clone()
            answer.reshape(1, 2, -1)[0, 1, 0] = value
            for score in (metrics.rmse, metrics.psnr):
                if score(answer, truth).isnan().tolist() != [[False, True]]:
                    raise AssertionError(f"{score.__name__}: {score(answer, truth).tolist()}")
            if metrics.match(answer, truth).tolist() not in ([[0, 1]], [[1, 0]]):
                raise AssertionError("not matched one to one")


def _thresholds(tally: Tally) -> None:
    def eta(examples: Tensor) -> float:
        return metrics.success_threshold(examples, generator(0, "eta"))

    for said, examples in {
        "constant pictures": torch.full((9, 1, 4, 4), 0.5),
        "one picture": torch.rand(1, 1, 4, 4),
        "a NaN": torch.full((9, 1, 4, 4), math.nan),
        "an infinity": torch.cat([torch.zeros(3, 4), torch.full((1, 4), math.inf)]),
    }.items():
        with tally.case(f"measures: a threshold of {said}"):
            try:
                found = eta(examples)
            except InputError as error:
                if not str(error).startswith("examples: got") or "\n" in str(error):
                    raise AssertionError(str(error)) from None
            else:
                raise AssertionError(f"{found}, expected a refusal")
    for kind in (torch.float32, torch.float16):
        with tally.case(f"measures: a threshold of black and white, many times, {kind}"):
            both = torch.cat([torch.zeros(5, 1, 4, 4), torch.ones(5, 1, 4, 4)]).to(kind)
            _is(torch.tensor([eta(both)]), 1.0)


def _intervals(tally: Tally) -> None:
    one, none, nan = [1.0], np.zeros(0), [math.nan]
    rng = generator(0, "bootstrap")
    z2 = 1.959963984540054**2
    stated: dict[str, tuple[Any, tuple[float, ...]]] = {
        "wilson of one success": (statistics.wilson(1, 1), (1 / (1 + z2), 1.0)),
        "wilson of 1e-12 trials": (statistics.wilson(0, 1e-12), (0.0, 1.0)),
        "wilson of 1e15 successes": (statistics.wilson(1e15, 1e15), (1.0, 1.0)),
        "a share of one NaN": (statistics.proportion(nan, [0]), (0.0, 0.0, 1 - 1 / (1 + z2))),
        "an exact share of one success": (statistics.exact(one, [0]), (1.0, 0.025, 1.0)),
        "an exact share of nothing": (statistics.exact(none, none), (math.nan, 0.0, 1.0)),
        "a paired bootstrap of one cluster": (
            statistics.paired_shares([1, 1], [0, 1], [4, 4], rng),
            (0.5, -0.625, 0.875),
        ),
        "a paired bootstrap of equals": (statistics.paired_shares([1, 0], [1, 0], [0, 1], rng), (0.0, -0.6, 0.6)),
        "a mean of one value": (statistics.mean_interval([0.0]), (0.0, 0.0, 1 - 1 / (1 + z2))),
        "a difference of one value": (statistics.difference_interval([0.3]), (0.3, -math.inf, math.inf)),
        "a median of NaN alone": (statistics.median_interval([math.nan] * 7), (math.inf, math.inf, math.inf)),
        "a median of one value": (statistics.median_interval([0.5]), (0.5, -math.inf, math.inf)),
        "a threshold curve of NaN alone": (statistics.threshold_curve(nan, [0.0, 1.0, math.inf]), (0.0, 0.0, 0.0)),
        "a threshold curve of 0 at 0": (statistics.threshold_curve([0.0], [0.0]), (1.0,)),
    }
    for said, (found, expected) in stated.items():
        with tally.case(f"measures: {said}"):
            np.testing.assert_allclose(np.asarray(found, dtype=float), expected, atol=1e-9)


def _conspicuous(tally: Tally) -> None:
    real = torch.tensor([[True, True], [True, False], [False, False]])
    for value in (0.0, 1.0, 1e30, math.nan, math.inf):
        with tally.case(f"measures: how conspicuous norms of {value} are"):
            found = d_snr({"a": torch.full((3, 2), value), "b": torch.full((3, 2), value)}, real)
            if found.shape != (3,) or (value in (0.0, 1.0) and bool(found[0] > 1e6)):
                raise AssertionError(f"{found.tolist()}")
        with tally.case(f"measures: how alike rows of {value} are"):
            found = rows_alike({"a": torch.full((1, 4, 3), value)})
            if value in (0.0, 1.0) and not bool(((found >= 0) & (found <= 1)).all()):
                raise AssertionError(f"{found.tolist()}, expected a share")
    with tally.case("measures: rows without an active example"):
        _is(lit_alone({"b": torch.zeros(3, 2, 5, dtype=torch.bool)}, real), math.nan)


def _is(found: Tensor, expected: float, within: float = 1e-5) -> None:
    if not torch.allclose(found.double(), torch.full_like(found.double(), expected), atol=within, equal_nan=True):
        raise AssertionError(f"got {found.flatten()[:3].tolist()}, expected {expected}")
