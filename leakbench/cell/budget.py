"""A cell with a privacy budget: the noise that spends it exactly, or the number of rounds within it."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

from scipy import optimize

from leakbench.cell import Cell, Request, identified, leak_rounds
from leakbench.cell.accounting import cell_epsilon
from leakbench.cell.cell import hand_out
from leakbench.cell.factors import check_louder, louder, with_factors
from leakbench.cell.federation import by_passes
from leakbench.cell.fit import check_fit
from leakbench.cell.resolve import plan_cell, with_examples
from leakbench.core.errors import InputError
from leakbench.core.progress import Progress, unreported
from leakbench.core.recipe import resolve
from leakbench.core.words import check_delta
from leakbench.data.find import Load, load_dataset
from leakbench.defense import Defense
from leakbench.privacy.budget import Budget
from leakbench.privacy.epsilon import Epsilon

__all__ = ["plan", "prepare", "rounds_in_budget", "with_epsilon"]

EXACT = 5e-4
"""Relative tolerance of the noise for a target epsilon, which is never exceeded."""

CALIBRATED = ("fed_cdp_valid", "fed_sdp_valid")
"""Defenses that a message suggests: noise for one example, and for one client."""

FARTHEST = 20.0
"""Logarithm of the largest noise factor of the search."""


def prepare(
    request: Request,
    data_dir: Path | None,
    progress: Any = None,
    load: Load = load_dataset,
) -> Cell:
    """Return the cell of a request with its data, and with the noise and the rounds for its budgets.

    The arguments are those of `plan`.

    Raises:
        InputError: For an option that does not fit, before the data are loaded, and for missing or wrong data.
    """
    planned = plan(request, data_dir, progress, load=load)
    check_canaries(planned)
    return with_examples(planned, request.dataset, data_dir, progress, load)


LEAST_CANARIES = 10
"""With fewer, not even right guesses of all are unlikely enough, since several numbers of guesses are tried."""


def check_canaries(cell: Cell) -> None:
    """Raise InputError for canaries in a training whose epsilon they cannot audit."""
    s, defense = cell.settings, cell.defense
    if not s.canaries:
        return
    name = cell.names["defense"]
    if s.canaries < LEAST_CANARIES:
        raise InputError(
            f"canaries: got {s.canaries}, expected at least {LEAST_CANARIES}: fewer can give no bound above 0"
        )
    own = cell_epsilon(defense, cell.data, s, hand_out(cell), None)
    if own.valid is None:
        raise InputError(
            f"canaries: defense {name!r} has no valid epsilon to audit ({own.reason.removeprefix('none: ')}); {_remedy(cell, 1e-5)}"
        )
    if defense.unit == "example" and (defense.batches != "poisson" or not defense.example):
        raise InputError(
            f"canaries: defense {name!r} draws {defense.batches} batches, expected Poisson batches and a clip of each example;"
            " canary examples are drawn for each batch on their own"
        )


def plan(
    request: Request,
    data_dir: Path | None = None,
    progress: Any = None,
    delta: float = 1e-5,
    load: Load = load_dataset,
    accounting: Progress = unreported,
) -> Cell:
    """Return the cell of `prepare` without the examples of its data set, which is enough for its epsilons.

    Args:
        request: The request. Its `epsilon` is the valid epsilon at `delta` that all noise together spends; its `stop_at_epsilon`
            and `stop_at_delta` are the budget after which training stops, instead of the recipe's own.
        data_dir: Folder of the data sets, for a recipe without recorded sizes.
        progress: Called with (file, bytes so far, total bytes) while data are fetched.
        delta: Delta of `request.epsilon`, in (0, 1).
        load: Reads a data set, as `load_dataset` does.
        accounting: Called as by `cell_epsilon`, for each noise or number of rounds that is tried.

    Raises:
        InputError: For an option that does not fit.
    """
    check_delta(delta)
    cell = plan_cell(request, data_dir, progress, load)
    check_fit(cell.settings, cell.data, cell.defense)
    cell = with_factors(cell, request.noise_factor, request.clip_factor)
    if request.epsilon is not None:
        cell = with_epsilon(cell, request.epsilon, delta, accounting)
    stop = _stop(request) or cell.defense.budget
    rounds = cell.settings.federation.rounds
    fit = rounds_in_budget(cell, stop, accounting) if stop and rounds else rounds
    if fit == rounds:
        return cell
    settings = dataclasses.replace(cell.settings, stop_after=fit, leak_rounds=leak_rounds(request, fit))
    return identified(dataclasses.replace(cell, settings=settings))


def _stop(request: Request) -> Budget | None:
    if request.stop_at_epsilon is None:
        return None
    return Budget(
        epsilon=request.stop_at_epsilon, delta=1e-5 if request.stop_at_delta is None else request.stop_at_delta
    )


def _remedy(cell: Cell, delta: float, rounds: int | None = None) -> str:
    """Return the remedy for a cell without a valid epsilon; it names a defense only if that one has an epsilon in this cell.

    Args:
        cell: The cell.
        delta: Delta of the epsilon.
        rounds: Number of trained rounds; None for those of the cell.
    """
    settings = dataclasses.replace(cell.settings, stop_after=rounds)
    untrained = not settings.federation.rounds
    if untrained:
        settings = dataclasses.replace(settings, federation=dataclasses.replace(settings.federation, rounds=1))
        if cell_epsilon(cell.defense, cell.data, settings, hand_out(cell), None, delta).valid is not None:
            return "give --train-rounds 1 or more, or leave the option out"
    first = "give --train-rounds 1 or more and " if untrained else ""
    for name in CALIBRATED:
        try:
            defense = by_passes(resolve("defenses", Defense, name)[1], settings)
            check_fit(settings, cell.data, defense)
            found = cell_epsilon(defense, cell.data, settings, hand_out(cell), None, delta)
        except InputError:
            continue
        if found.valid is not None:
            return f"{first}choose a defense with calibrated noise, such as {name}, or leave the option out"
    return "leave the option out"


def with_epsilon(cell: Cell, target: float, delta: float = 1e-5, progress: Progress = unreported) -> Cell:
    """Return the cell with all its noise multiplied by one factor, so that its valid epsilon is the target.

    Args:
        target: Epsilon of released models at `delta`, > 0.
        progress: Called as by `cell_epsilon`, for each noise that is tried.

    Raises:
        InputError: For a defense without a valid epsilon, or a target that no factor reaches.
    """
    partition = hand_out(cell)
    check_louder(cell, "epsilon")
    own = cell_epsilon(cell.defense, cell.data, cell.settings, partition, None, delta, progress)
    if own.valid is None:
        raise InputError(
            f"epsilon: defense {cell.names['defense']!r} has no valid epsilon to be set ({own.reason}); {_remedy(cell, delta)}"
        )

    def excess(log_factor: float) -> float:
        defense = louder(cell.defense, math.exp(log_factor))
        valid = cell_epsilon(defense, cell.data, cell.settings, partition, None, delta, progress).valid
        return math.log(max(valid, 1e-12) / target) if valid is not None else 50.0

    soft, loud = 0.0, 0.0
    while excess(loud) > 0:
        soft, loud = loud, 2 * loud + 0.5
        if loud > FARTHEST:
            raise InputError(
                f"epsilon: {target:g} cannot be reached: defense {cell.names['defense']!r} spends more under any noise"
            )
    while soft == loud or excess(soft) <= 0:
        soft, loud = 2 * soft - 0.5, soft
        if soft < -FARTHEST:
            raise InputError(
                f"epsilon: {target:g} cannot be reached: defense {cell.names['defense']!r} spends less without noise"
            )
    # Epsilon decreases with the noise, nearly linearly in these logarithms; EXACT more noise stays below the target.
    log_factor = optimize.brentq(excess, soft, loud, xtol=EXACT)
    return identified(dataclasses.replace(cell, defense=louder(cell.defense, math.exp(log_factor + EXACT))))


def rounds_in_budget(cell: Cell, budget: Budget, progress: Progress = unreported) -> int:
    """Return the number of rounds of the cell's federation within the budget.

    Args:
        progress: Called as by `cell_epsilon`, for each number of rounds that is tried.

    Raises:
        InputError: For a defense without the epsilon of the budget, or a budget below the epsilon of one round.
    """
    rounds, partition = cell.settings.federation.rounds, hand_out(cell)

    def after(count: int) -> Epsilon:
        settings = dataclasses.replace(cell.settings, stop_after=count)
        return cell_epsilon(cell.defense, cell.data, settings, partition, None, budget.delta, progress)

    def fits(count: int) -> bool:
        spent = after(count).claimed if budget.of == "claimed" else after(count).valid
        return spent is not None and spent <= budget.epsilon

    first = after(1)
    if budget.of == "valid" and first.valid is None:
        raise InputError(
            f"stop-at-epsilon: defense {cell.names['defense']!r} has no valid epsilon ({first.reason});"
            f" {_remedy(cell, budget.delta, 1)}"
        )
    if fits(rounds):
        return rounds
    fit, over = 0, rounds
    while over - fit > 1:
        middle = (fit + over) // 2
        fit, over = (middle, over) if fits(middle) else (fit, middle)
    if fit == 0:
        raise InputError(f"stop-at-epsilon: the first round alone spends more than {budget.epsilon:g}")
    return fit
