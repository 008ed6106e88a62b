"""The answers of the rankings beside an attack, each given what it needs and told of the defense."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from leakbench.answers import Ranking, Reconstruction
from leakbench.attack.rankings.reconstructed import CALIBRATION, by_both
from leakbench.cell import Cell
from leakbench.data.dataset import Feature
from leakbench.experiment.victims import aware, public_examples
from leakbench.federated.view import Public, View
from leakbench.measure.rates import IDENTIFIED
from leakbench.scoring.rankings import RANKINGS, Ranks
from leakbench.types import Generators

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
    """Return {name: the answer} to every question of `leakbench.scoring.rankings` that can be asked of what leaked.

    `identified` is answered by the nearest neighbour of the reconstruction for the victims for which the attacker has evidence,
    and by the likelihood of what leaked for the others, see `leakbench.attack.rankings.reconstructed`.
    `identified_by_likelihood` and `identified_by_reconstruction` are both answers alone.

    Args:
        shown: The candidates.
        features: The attributes that are asked for.
        answer: The attack's; of one that ranks it stands for the answer to its question, which is who of the candidates it was,
            unless its method is the part that answers another one.
        ready: What `likelihoods` returned before the attack; None for nothing.
    """
    found = dict(ready or {})
    if isinstance(answer, Ranking):
        method, asked = cell.attack.method, _asked(features)
        found[next((name for name, rank in asked.items() if isinstance(method, type(rank))), IDENTIFIED.name)] = answer
    found = likelihoods(cell, views, shown, features, rngs, found)
    informed = _informed(cell, views, shown)
    calibration = public_examples(cell, CALIBRATION).inputs
    return found | by_both(informed, found[IDENTIFIED.name], shown, calibration, answer)


def likelihoods(
    cell: Cell,
    views: tuple[View, ...],
    shown: Public,
    features: Sequence[Feature],
    rngs: Generators,
    found: Mapping[str, Ranking] | None = None,
) -> dict[str, Ranking]:
    """Return {name: the answer} to the questions that are answered by what leaked alone, whatever an attack reconstructs.

    No random number is drawn, so that it makes no difference whether they are answered before an attack or after it.

    Args:
        found: Answers that there are already.
    """
    found = dict(found or {})
    informed = _informed(cell, views, shown)
    for name, rank in _asked(features).items():
        if name in found or (rank.needs.alone and informed[0].examples > 1):
            continue
        told = informed
        if rank.needs.public:
            public = public_examples(cell, rank.needs.public)
            told = tuple(dataclasses.replace(view, public=public) for view in informed)
        found[name] = rank(told, rngs)
    return found


def _asked(features: Sequence[Feature]) -> dict[str, Ranks]:
    return {name: rank for name, question in RANKINGS.items() if (rank := question.rank(features)) is not None}


def _informed(cell: Cell, views: tuple[View, ...], shown: Public) -> tuple[View, ...]:
    return tuple(dataclasses.replace(aware(view, cell), candidates=shown) for view in views)
