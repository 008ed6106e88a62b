"""A case: one call of a scorer, with the scores that it must return."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from leakbench.conformance.contract import Answer, Floats, Truth

__all__ = [
    "Between",
    "Case",
    "Close",
    "EachExample",
    "Finite",
    "Known",
    "OneOf",
    "Unanswered",
    "Worse",
    "case",
    "shown",
]


class Known(Protocol):
    """A known score."""

    def holds(self, got: Floats) -> bool:
        """Return whether `got` is the known answer."""

    def __str__(self) -> str:
        """Return the expected score as text."""


def shown(values: Floats) -> str:
    """Return numbers with four digits as text, only the first three of many."""
    flat = values.reshape(-1)
    if not values.ndim:
        return f"{float(flat[0]):.4g}"
    more = f", ... ({len(flat)} in all)" if len(flat) > 6 else ""
    return "[" + ", ".join(f"{x:.4g}" for x in (flat[:3] if more else flat)) + more + "]"


def _alike(got: Floats, known: Floats) -> tuple[Floats, Floats] | None:
    """Return both per batch if one of them is; None if the numbers of values do not fit."""
    if got.ndim == 2 and known.ndim == 1:
        got = got.mean(1)
    elif got.ndim == 1 and known.ndim == 2:
        known = known.mean(1)
    return (got, known) if got.shape == known.shape else None


@dataclass(frozen=True, eq=False)
class Close:
    """The values (V, B), their means per batch, or one number, within `tolerance` or a share `relative` of the value."""

    values: Floats
    tolerance: float
    relative: float = 0.0

    def holds(self, got: Floats) -> bool:
        """Return whether all are close."""
        pair = _alike(got, self.values)
        return pair is not None and bool(np.allclose(*pair, rtol=self.relative, atol=self.tolerance))

    def __str__(self) -> str:
        within = f"within {self.relative:.2g} of the value" if self.relative else f"+- {self.tolerance:g}"
        return f"{shown(self.values)} {within}"


@dataclass(frozen=True, eq=False)
class EachExample:
    """The values (V, B) within `tolerance`, one for each example."""

    values: Floats
    tolerance: float

    def holds(self, got: Floats) -> bool:
        """Return whether each example has its value; one number per batch is not enough."""
        same = got.shape == self.values.shape
        return same and bool(np.allclose(got, self.values, rtol=0, atol=self.tolerance))

    def __str__(self) -> str:
        return f"{shown(self.values)} +- {self.tolerance:g}, one number an example"


@dataclass(frozen=True, eq=False)
class Unanswered:
    """The values (V, 1) within `tolerance`. For a missing reconstruction the value is NaN; NaN or a worst score is accepted there.

    Args:
        worst: +1 if larger scores are worse, as for an RMSE, else -1.
    """

    values: Floats
    worst: int
    tolerance: float

    def holds(self, got: Floats) -> bool:
        """Return whether the scores have their values, and a missing reconstruction does not have a good score."""
        pair = _alike(got, self.values)
        if pair is None:
            return False
        found, known = pair
        answered = ~np.isnan(known)
        limit = (self.worst * known[answered]).max()
        missing = found[~answered]
        kept = np.isnan(missing) | (self.worst * np.nan_to_num(missing, posinf=1e30, neginf=-1e30) >= limit)
        return bool(np.allclose(found[answered], known[answered], rtol=0, atol=self.tolerance) and kept.all())

    def __str__(self) -> str:
        return f"{shown(self.values)} +- {self.tolerance:g}, for nan also every value that is not better than the worst answer"


@dataclass(frozen=True)
class Worse:
    """One number, or the worst of several, beyond `limit`.

    Args:
        worst: +1 if larger scores are worse, else -1.
        limit_of: Description of the limit.
        or_none: Whether NaN is accepted too, since readers do not take it for a good value.
    """

    limit: float
    worst: int
    limit_of: str
    or_none: bool = False

    def holds(self, got: Floats) -> bool:
        """Return whether the worst number is beyond the limit."""
        if np.isnan(got).any():
            return self.or_none
        return bool((self.worst * got).max(initial=-np.inf) > self.worst * self.limit + 1e-3)

    def __str__(self) -> str:
        side = "above" if self.worst > 0 else "below"
        return f"{side} {self.limit:.4g} ({self.limit_of}){', or nan' if self.or_none else ''}"


@dataclass(frozen=True)
class Between:
    """Numbers from low to high."""

    low: float
    high: float

    def holds(self, got: Floats) -> bool:
        """Return whether all numbers are in the range."""
        return bool(((self.low <= got) & (got <= self.high)).all())

    def __str__(self) -> str:
        return f"{self.low:.4g} to {self.high:.4g}"


@dataclass(frozen=True, eq=False)
class Finite:
    """Finite numbers, within `tolerance` of the values (V, B) that are not NaN; one number per batch has to be finite only."""

    values: Floats
    tolerance: float

    def holds(self, got: Floats) -> bool:
        """Return whether all are finite, and those known are right."""
        if not np.isfinite(got).all() or got.shape != self.values.shape:
            return bool(np.isfinite(got).all()) and got.shape == self.values.shape[:-1]
        known = ~np.isnan(self.values)
        return bool(np.allclose(got[known], self.values[known], rtol=0, atol=self.tolerance))

    def __str__(self) -> str:
        return f"finite, {shown(self.values[~np.isnan(self.values)])} +- {self.tolerance:g} next to the perfect picture"


@dataclass(frozen=True, eq=False)
class OneOf:
    """One of several known answers, each with a name."""

    answers: dict[str, Known]

    def holds(self, got: Floats) -> bool:
        """Return whether the score is one of them."""
        return any(known.holds(got) for known in self.answers.values())

    def __str__(self) -> str:
        return " or ".join(f"{known} ({name})" for name, known in self.answers.items())


@dataclass(frozen=True, eq=False)
class Case:
    """One call of a scorer.

    Args:
        name: `measure: what`.
        why: The reason of the case, in one sentence.
        known: {measure: known score}.
        skipped: Why the case cannot run on this machine; empty if it can.
    """

    name: str
    why: str
    truth: Truth
    answer: Answer
    known: Mapping[str, Known] = field(default_factory=dict)
    skipped: str = ""

    @property
    def measure(self) -> str:
        """The measure of the case."""
        return self.name.partition(":")[0]


def case(
    name: str,
    why: str,
    truth: NDArray[np.float32],
    answer: NDArray[np.float32],
    known: Mapping[str, Known],
    labels: tuple[list[list[int]], list[list[int]]] | None = None,
) -> Case:
    """Return the case of pictures (V, B, C, H, W), with labels (truth, answer), (V, B) each; None for right labels."""
    numbers = np.arange(truth.shape[0] * truth.shape[1]).reshape(truth.shape[:2])
    real, guessed = (np.asarray(x, dtype=np.int64) for x in labels or (numbers, numbers))
    return Case(name, why, {"inputs": truth, "labels": real}, {"inputs": answer, "labels": guessed}, known)
