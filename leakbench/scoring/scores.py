"""From an attacker's answer to rows: matched to the truth, scored outside the attacker, one row per example."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from leakbench.attack.null.pictures import NullAttack
from leakbench.core.answers import Ranking, Reconstruction
from leakbench.measure import metrics
from leakbench.measure.closeness import PIXELS, Closeness
from leakbench.measure.measures import MEASURES, RMSE
from leakbench.measure.rates import IDENTIFIED
from leakbench.measure.truth import VictimTruth
from leakbench.measure.unanswered import NONE_GIVEN, NOT_FINITE
from leakbench.scoring.rankings import ONE_EACH, told

__all__ = ["COLUMNS", "RANKS_ONLY", "VictimTruth", "no_reconstruction", "score"]

RANKS_ONLY = "the attack ranks, it does not reconstruct"

COLUMNS = (
    *(
        "tap",
        "round",
        "victim",
        "batch",
        "network",
        "member",
        "example",
        "label",
        "label_guess",
        "failure",
        "failure_reason",
    ),
    *(measure.name for measure in MEASURES),
    *("distance", "success", "eta", RMSE.baseline, "null_success"),
    *ONE_EACH,
    *("candidates", "iterations", "iterations_to_success", "evaluations", "evaluations_to_success", "doubts"),
    *("fit_seconds", "fit_public"),
)


def no_reconstruction(truth: VictimTruth) -> Reconstruction:
    """Return the reconstruction of an attack that ranks: no answer for any example, no label (-1), no iteration."""
    victims, members = truth.labels.shape
    none = torch.zeros(victims, dtype=torch.int64)
    blank = torch.full_like(truth.inputs, torch.nan)
    certainty, trajectory = truth.inputs.new_zeros(victims, members), truth.inputs.new_zeros(0, victims)
    return Reconstruction(
        blank, torch.full_like(truth.labels, -1), certainty, trajectory, none, none, blank[None], (0,), none[None]
    )


def score(
    tap: str,
    round_number: int,
    answer: Reconstruction | None,
    rankings: Mapping[str, Ranking],
    null: NullAttack,
    truth: VictimTruth,
    eta: float,
    lpips: metrics.Score | str,
    network: int = 0,
    closeness: Closeness = PIXELS,
) -> tuple[pd.DataFrame, Tensor]:
    """Return (rows, reconstruction (V, M, *s) in the order of the truth).

    Args:
        answer: None of an attack that only ranks.
        rankings: {name: its answer}, of `leakbench.scoring.rankings`, scored for each victim's first example alone: `identified`
            among k candidates; `label_ranked` among the classes, NaN for a label that no public example has, which it cannot
            name.
        null: Guesses for all V * M examples of the cell's victims. A missing or non-finite answer is a failure and counts against
            the attacker; one with a certainty of minus infinity is missing. fit_seconds, fit_public: what the attacker learned
            before it answered, as it was learned; NaN of one that does not learn.
        network: Which draw of the first weights leaked, counted from 0.
        closeness: How reconstructions are matched to the truth and judged.
    """
    ranks_only = answer is None
    answer = no_reconstruction(truth) if answer is None else answer
    order = closeness.match(answer.inputs, truth.inputs)
    inputs = _ordered(answer.inputs, order)
    victims, members = order.shape
    apart = closeness.distance(inputs, truth.inputs)
    failed = ~apart.isfinite()
    first = torch.zeros(failed.shape, dtype=torch.bool)  # On the CPU, as what `told` answers.
    first[:, 0] = True
    ranked = {name: told(rankings, name, truth)[name][:, None].expand(victims, members) for name in ONE_EACH}
    null_apart = _null(null, null.best_for_rmse, truth, closeness)
    null_success = _null(null, null.best_for_success, truth, closeness) <= eta
    reached, spent = _to_success(answer, truth, eta, closeness)
    pixels = closeness.measure is RMSE
    none = torch.full_like(apart, torch.nan)
    columns: dict[str, Tensor | np.ndarray] = {
        "victim": truth.lanes[:, None].expand(victims, members),
        "batch": truth.lanes[:, None].expand(victims, members),
        "member": torch.arange(members)[None].expand(victims, members),
        "example": truth.examples,
        "label": truth.labels,
        "label_guess": answer.labels.gather(1, order),
        "failure": failed,
        **{m.name: m.of(inputs, truth.inputs) if pixels else none for m in MEASURES if m.of is not None},
        "lpips": none if isinstance(lpips, str) or not pixels else lpips(inputs, truth.inputs),
        "distance": -answer.certainty.gather(1, order),
        "success": apart <= eta,
        RMSE.baseline: null_apart if pixels else none,
        "null_success": null_success,
        **{name: torch.where(first, right, torch.nan) for name, right in ranked.items()},
        "iterations": answer.steps[:, None].expand(victims, members),
        "iterations_to_success": reached,
        "evaluations": answer.evaluations[:, None].expand(victims, members),
        "evaluations_to_success": spent,
    }
    if not pixels:
        columns[closeness.measure.baseline] = null_apart
    rows = pd.DataFrame({name: np.asarray(c.cpu()).reshape(-1) for name, c in columns.items() if isinstance(c, Tensor)})
    given = np.where(np.isposinf(rows["distance"]), NONE_GIVEN, NOT_FINITE)
    rows["failure_reason"] = np.where(rows["failure"], RANKS_ONLY if ranks_only else given, "")
    learned = answer.fit
    took, public = (np.nan, np.nan) if learned is None else (learned.seconds, float(learned.public))
    doubts = np.repeat(_doubts(answer, victims), members)
    rows = rows.assign(
        tap=tap,
        round=round_number,
        network=network,
        eta=eta,
        candidates=_candidates(rankings[IDENTIFIED.name], truth),
        doubts=doubts,
    )
    rows = rows.assign(fit_seconds=took, fit_public=public)
    return rows[[*COLUMNS, *([] if pixels else [closeness.measure.baseline])]], inputs


def _candidates(ranking: Ranking, truth: VictimTruth) -> np.ndarray:
    """Return among how many candidates each victim is identified, for V * M rows, without other examples of its batch."""
    victims, members = truth.labels.shape
    many = torch.full((victims,), ranking.scores.shape[1], dtype=torch.int64)
    others = truth.others
    return np.repeat(np.asarray(many if others is None else many - others.sum(1).cpu()), members)


def _doubts(answer: Reconstruction, victims: int) -> list[str]:
    """Return for each victim why the attack on it may be weak, with `; ` between; empty where nothing is doubted."""
    return ["; ".join(why for why, whom in answer.doubts.items() if whom[v]) for v in range(victims)]


def _ordered(inputs: Tensor, order: Tensor) -> Tensor:
    index = order.reshape(*order.shape, *[1] * (inputs.dim() - 2)).expand(*order.shape, *inputs.shape[2:])
    return inputs.gather(1, index)


def _null(null: NullAttack, guesser: str, truth: VictimTruth, closeness: Closeness) -> Tensor:
    everyone = null.guesses[guesser]
    guess = everyone.reshape(-1, truth.labels.shape[1], *everyone.shape[1:])[truth.lanes]
    return closeness.distance(guess.to(truth.inputs), truth.inputs)


def _to_success(answer: Reconstruction, truth: VictimTruth, eta: float, closeness: Closeness) -> tuple[Tensor, Tensor]:
    """Return (V, M) twice: the first recorded iteration from which on the attacker's best guess stayed within eta, and its cost.

    The cost is the number of gradient evaluations until then. Both are NaN where the reconstruction is not within eta. A guess
    within eta that the attacker gave up again by its own distance does not count, since only the truth shows that it was close.
    """
    reached = torch.full(truth.labels.shape, torch.nan, dtype=torch.float64)
    spent, held = reached.clone(), torch.ones(reached.shape, dtype=torch.bool)
    kept = zip(reversed(answer.snapshots), answer.iterates.flip(0), answer.spent.flip(0), strict=True)
    for iteration, inputs, evaluations in kept:
        matched = _ordered(inputs, closeness.match(inputs, truth.inputs))
        held &= closeness.distance(matched, truth.inputs).cpu() <= eta
        reached[held] = float(iteration)
        spent[held] = evaluations.cpu().double()[:, None].expand_as(spent)[held]
    return reached, spent
