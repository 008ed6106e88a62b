"""The rankings that every attack is reported with: the question about a victim's first example, its ranker and its answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import torch
from torch import Tensor

from leakbench.attack.needs import Needs
from leakbench.attack.rankings.attributes import Attributes
from leakbench.attack.rankings.candidates import Candidates
from leakbench.attack.rankings.classes import Classes
from leakbench.core.answers import Ranking
from leakbench.core.types import Generators
from leakbench.data.attributes import values_of
from leakbench.data.dataset import Feature
from leakbench.federated.view import View
from leakbench.measure.rates import IDENTIFIED, LABEL_RANKED
from leakbench.measure.truth import VictimTruth

__all__ = ["ONE_EACH", "RANKINGS", "Question", "Ranks", "identified_first", "ranked_first", "told"]

Features: TypeAlias = Sequence[Feature]


class Ranks(Protocol):
    """A part that ranks the hypotheses of one question, or of several side by side."""

    @property
    def needs(self) -> Needs:
        """The inputs that it needs in addition to the leak."""

    def __call__(self, views: tuple[View, ...], rngs: Generators) -> Ranking:
        """Return its scores for the V victims that all views show."""


@dataclass(frozen=True)
class Question:
    """A question about every victim's first example, which a ranking answers in addition to the attack.

    Args:
        said: Name of the share of right answers in printed lines.
        rank: The attributes in question -> the part that ranks; None where nothing is ranked.
        right: (the truth, the attributes) -> {column of the rows: which hypothesis is right (V,), -1 where unknown}.
        kappa: Takes the leakage point of a summary, with `null_label`, the largest share of one label, or the fields of an
            attribute; returns how often the baseline guess is right.
        several: Whether it is one question for each of the attributes, with a column for each.
        absent: The reason for a missing value.
    """

    said: str
    rank: Callable[[Features], Ranks | None]
    right: Callable[[VictimTruth, Features], dict[str, Tensor]]
    kappa: Callable[[Any], float]
    several: bool = False
    absent: str = ""


RANKINGS = {
    IDENTIFIED.name: Question(
        said=IDENTIFIED.heading,
        rank=lambda _: Candidates(),
        right=lambda truth, _: {IDENTIFIED.name: truth.own},
        kappa=lambda tap: tap.chance,
    ),
    LABEL_RANKED.name: Question(
        said=LABEL_RANKED.heading,
        rank=lambda _: Classes(),
        right=lambda truth, _: {LABEL_RANKED.name: truth.labels[:, 0]},
        kappa=lambda tap: float(tap.null_label),
        absent="no public example is of a victim's class, so that this ranking cannot name it",
    ),
    "attribute": Question(
        said="attribute",
        rank=lambda features: Attributes(tuple(f.name for f in features)) if features else None,
        right=lambda truth, features: {f"attribute_{f.name}": values_of(truth.inputs[:, 0], f) for f in features},
        kappa=lambda attribute: float(attribute["null"]),
        several=True,
        absent="no victim has a known value that a public record has",
    ),
}
"""{how the rows and the summary call it: the question}."""

ONE_EACH = tuple(name for name, question in RANKINGS.items() if not question.several)
"""The questions with one column, called as they are, which every run has."""


def told(rankings: Mapping[str, Ranking], name: str, truth: VictimTruth, features: Features = ()) -> dict[str, Tensor]:
    """Return {column: (V,) float64} of one question: 1 where the right hypothesis alone scores highest, 1 / n where n tie, else 0.

    NaN where the right one is unknown or was none to choose from, and where `rankings` has no answer.
    """
    question, found = RANKINGS[name], {}
    for column, right in question.right(truth, features).items():
        if name not in rankings:
            found[column] = torch.full((len(truth.labels),), torch.nan, dtype=torch.float64)
            continue
        scores, known = rankings[name].of(column.removeprefix(f"{name}_")).scores.cpu(), right.cpu()
        if name == IDENTIFIED.name:
            found[column] = identified_first(scores, truth)
            continue
        found[column] = ranked_first(scores, known.clamp_min(0)).where(known >= 0, torch.nan)
    return found


def identified_first(scores: Tensor, truth: VictimTruth) -> Tensor:
    """Return (V,): 1 where the victim's first example alone scores highest of (V, k), 1 / n where n tie, else 0.

    Candidates that are other examples of the victim's batch do not count: naming one would be right too. NaN where no candidate
    has a finite score, as with a gradient that is not finite: nothing was ranked, which shows nothing.
    """
    known, others = scores.cpu(), truth.others
    first = _first(known if others is None else known.masked_fill(others.cpu(), -torch.inf), truth.own.cpu())
    return torch.where(known.isfinite().any(1), first, torch.nan)


def ranked_first(scores: Tensor, right: Tensor) -> Tensor:
    """Return (V,): 1 where the right hypothesis (V,) alone scores highest of (V, k), 1 / n where n tie, 0 else; NaN for -inf.

    A score of -inf excludes a hypothesis. Without a finite score, no hypothesis counts as first.
    """
    possible = scores.gather(1, right[:, None])[:, 0] != -torch.inf
    return torch.where(possible, _first(scores, right), torch.nan)


def _first(scores: Tensor, own: Tensor) -> Tensor:
    """Return (V,): 1 where the own hypothesis alone scores highest, 1 / n where n tie; 0 else, also where none is finite."""
    best = scores.nan_to_num(nan=-torch.inf, posinf=-torch.inf).amax(1, keepdim=True)
    tied = (scores == best) & best.isfinite()
    mine = tied.gather(1, own[:, None])[:, 0]
    return mine.double() / tied.sum(1).clamp_min(1)
