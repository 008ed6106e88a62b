"""The rankings in addition to an attack, each with the data that it needs and with knowledge of the defense."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from leakbench.attack.rankings.reconstructed import CALIBRATION, by_both
from leakbench.cell import Cell
from leakbench.core.answers import Ranking, Reconstruction
from leakbench.core.types import Generators
from leakbench.data.dataset import Feature
from leakbench.experiment.victims import aware, public_examples
from leakbench.federated.view import Public, View
from leakbench.measure.rates import IDENTIFIED, LABEL_RANKED
from leakbench.scoring.rankings import RANKINGS, Ranks

__all__ = ["likelihoods", "rankings"]


def rankings(
    cell: Cell,
    views: tuple[View, ...],
    shown: Public,
    features: Sequence[Feature],
    answer: Reconstruction | Ranking,
    rngs: Generators,
    ready: Mapping[str, Ranking] | None = None,
) -> dict[str, Ranking]:
    """Return {name: ranking} for every question of `leakbench.scoring.rankings` that applies to the update.

    `identified` uses the nearest neighbour of the reconstruction for victims with evidence, and the likelihood of the update
    for the others; see `leakbench.attack.rankings.reconstructed`. `identified_by_likelihood` and `identified_by_reconstruction`
    use only one of both.

    Args:
        shown: The candidates.
        features: The attributes to infer.
        answer: The result of the attack. A ranking answers its own question: `identified`, unless its method belongs to another
            one.
        ready: The result of `likelihoods` before the attack, if any.
    """
    by_name = dict(ready or {})
    if isinstance(answer, Ranking):
        method, questions = cell.attack.method, _questions(features)
        own = next((name for name, rank in questions.items() if isinstance(method, type(rank))), IDENTIFIED.name)
        by_name[own] = answer
    by_name = likelihoods(cell, views, shown, features, rngs, by_name)
    informed = _informed(cell, views, shown)
    calibration = public_examples(cell, CALIBRATION).inputs
    return by_name | by_both(informed, by_name[IDENTIFIED.name], shown, calibration, answer)


def likelihoods(
    cell: Cell,
    views: tuple[View, ...],
    shown: Public,
    features: Sequence[Feature],
    rngs: Generators,
    found: Mapping[str, Ranking] | None = None,
) -> dict[str, Ranking]:
    """Return {name: ranking} for the questions that need only the update and not the reconstruction of an attack.

    The rankings draw no random numbers, so they may run before or after the attack.

    Args:
        found: Rankings that exist already.
    """
    by_name = dict(found or {})
    informed = _informed(cell, views, shown)
    for name, rank in _questions(features).items():
        if name == LABEL_RANKED.name and cell.data.targets is not None:  # No network names a class.
            continue
        if name in by_name or (rank.needs.alone and informed[0].examples > 1):
            continue
        each = informed
        if rank.needs.public:
            public = public_examples(cell, rank.needs.public)
            each = tuple(dataclasses.replace(view, public=public) for view in informed)
        by_name[name] = rank(each, rngs)
    return by_name


def _questions(features: Sequence[Feature]) -> dict[str, Ranks]:
    return {name: rank for name, question in RANKINGS.items() if (rank := question.rank(features)) is not None}


def _informed(cell: Cell, views: tuple[View, ...], shown: Public) -> tuple[View, ...]:
    return tuple(dataclasses.replace(aware(view, cell), candidates=shown) for view in views)
