"""The answers of the rankings beside an attack, each given what it needs and told of the defense."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from leakbench.answers import Ranking, Reconstruction
from leakbench.attack.rankings.reconstructed import CALIBRATION, by_both
from leakbench.cell import Cell
from leakbench.data.dataset import Feature
from leakbench.federated.view import Public, View
from leakbench.measure.rankings import RANKINGS
from leakbench.run.victims import aware, public_examples
from leakbench.types import Generators

__all__ = ["rankings"]


def rankings(
    cell: Cell,
    views: tuple[View, ...],
    shown: Public,
    features: Sequence[Feature],
    answer: Reconstruction | Ranking,
    rngs: Generators,
) -> dict[str, Ranking]:
    """Return {name: the answer} to every question of `leakbench.measure.rankings` that can be asked of what leaked.

    `identified` is answered by the nearest neighbour of the reconstruction for the victims for which the attacker has evidence,
    and by the likelihood of what leaked for the others, see `leakbench.attack.rankings.reconstructed`.
    `identified_by_likelihood` and `identified_by_reconstruction` are both answers alone.

    shown: the candidates.  features: the attributes that are asked for.  answer: the attack's; of one that ranks it stands for the
    answer to its question, which is who of the candidates it was, unless its method is the part that answers another one.
    """
    informed = tuple(dataclasses.replace(aware(view, cell), candidates=shown) for view in views)
    asked = {name: rank for name, question in RANKINGS.items() if (rank := question.rank(features)) is not None}
    found = {}
    if isinstance(answer, Ranking):
        method = cell.attack.method
        found[next((name for name, rank in asked.items() if isinstance(method, type(rank))), "identified")] = answer
    for name, rank in asked.items():
        if name in found or (rank.needs.alone and informed[0].examples > 1):
            continue
        told = informed
        if rank.needs.public:
            public = public_examples(cell, rank.needs.public)
            told = tuple(dataclasses.replace(view, public=public) for view in informed)
        found[name] = rank(told, rngs)
    calibration = public_examples(cell, CALIBRATION).inputs
    return found | by_both(informed, found["identified"], shown, calibration, answer)
