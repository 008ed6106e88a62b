"""How the reconstructions of a data set are matched to the truth and judged: pixels and features by RMSE, texts by their tokens."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

import torch
from torch import Tensor

from leakbench.core.errors import InputError
from leakbench.core.rng import generator
from leakbench.data.dataset import Dataset
from leakbench.measure import metrics
from leakbench.measure.measures import EDIT_DISTANCE, RMSE, Measure
from leakbench.measure.metrics_texts import edit_distance, match_texts, pairwise_edit_distance

__all__ = ["PIXELS", "Closeness", "closeness_of", "eta_of"]

Apart: TypeAlias = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Closeness:
    """The distance that decides whether a reconstruction is a success.

    Args:
        measure: Its name in rows and summaries.
        match: Takes reconstructions and truths (V, M, *s); returns the order (V, M) of the reconstructions.
        distance: Takes reconstructions and truths (V, M, *s); returns (V, M) in [0, 1], NaN without a reconstruction.
        pairwise: Takes examples (n, *s) and (k, *s); returns (n, k).
        threshold: Takes examples (n, *s), the positions (k,) of those that may be victims, and a generator; returns eta.
    """

    measure: Measure
    match: Apart
    distance: Apart
    pairwise: Apart
    threshold: Callable[[Tensor, Tensor, torch.Generator], float]


PIXELS = Closeness(
    RMSE,
    # Looked up at each call, so that a check can put another function in their place.
    lambda answer, truth: metrics.match(answer, truth),  # noqa: PLW0108
    lambda answer, truth: metrics.rmse(answer, truth),  # noqa: PLW0108
    metrics.pairwise_rmse,
    lambda examples, victims, rng: metrics.success_threshold(examples, rng, among=victims),
)
"""Pictures and records: the root mean square error of pixels or features."""


def closeness_of(data: Dataset) -> Closeness:
    """Return how reconstructions of a data set are judged."""
    words = data.vocabulary
    if words is None:
        return PIXELS

    def distance(answer: Tensor, truth: Tensor) -> Tensor:
        return edit_distance(answer.flatten(0, 1), truth.flatten(0, 1), words).reshape(truth.shape[:2])

    pairwise = partial(pairwise_edit_distance, vocabulary=words)
    return Closeness(
        EDIT_DISTANCE,
        partial(match_texts, vocabulary=words),
        distance,
        pairwise,
        lambda examples, victims, rng: _threshold(metrics.sample(examples, rng, MOST, victims), pairwise),
    )


def eta_of(data: Dataset, seed: int, success: float | None) -> float:
    """Return eta, the distance up to which a reconstruction counts as a success: `success` if given, else the data set's threshold.

    Args:
        data: The data set; its threshold is that of the examples that can be attacked.
        seed: Seed of the cell.
        success: The threshold of a request; None for that of the data set.
    """
    if success is not None:
        return success
    return closeness_of(data).threshold(data.train_inputs, data.victims, generator(seed, "eta"))


MOST, QUANTILE = 400, 0.001
"""Largest number of sentences whose distances give the threshold, and the share of their pairs that reaches it."""


def _threshold(examples: Tensor, pairwise: Apart) -> float:
    """Return the largest distance that at most the share `QUANTILE` of the pairs of distinct sentences (n, *s) reaches.

    Distances of sentences are fractions with many ties, so that a quantile alone could be reached by more pairs.

    Raises:
        InputError: For fewer than two distinct sentences.
    """
    chosen = torch.unique(examples, dim=0)
    if len(chosen) < 2:
        raise InputError(f"examples: got {len(chosen)} distinct, expected at least 2 to measure a distance")
    apart = pairwise(chosen, chosen)[torch.ones(len(chosen), len(chosen), dtype=torch.bool).triu(1)]
    apart = apart[apart > 0]  # Sentences that differ only in special tokens are the same.
    if not len(apart):
        raise InputError(
            "examples: all have the same tokens, expected at least 2 distinct sentences to measure a distance"
        )
    ordered = apart.sort().values
    allowed = int(QUANTILE * len(ordered))
    below = ordered[ordered < ordered[allowed]]
    return float(below[-1]) if len(below) else float(ordered[0]) / 2
