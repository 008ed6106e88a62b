"""The command `audit`: a defense of the catalog, or a user's own function, in the federation of a cell."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from leakbench.auditing.canary import FAR, neighbours
from leakbench.auditing.coupled import check, strength
from leakbench.auditing.function import callable_release, load_callable
from leakbench.auditing.one_run import OneRun, audit_one_run, default_choices
from leakbench.auditing.over_rounds import Turns, played
from leakbench.auditing.own import audit_callable
from leakbench.auditing.release import DefenseRelease
from leakbench.auditing.verdict import Audit, Stated, judge
from leakbench.cell import Cell, Request, probe_of
from leakbench.cell.accounting import cell_epsilon, ledger_of
from leakbench.cell.budget import plan
from leakbench.cell.cell import hand_out
from leakbench.core.errors import InputError
from leakbench.core.progress import Progress, unreported
from leakbench.core.rng import generator
from leakbench.core.words import check_audit
from leakbench.defense import FactProbe
from leakbench.defense.facts import facts_at
from leakbench.privacy.accountants import best
from leakbench.privacy.calibration import calibrated
from leakbench.privacy.claim import Claim, NoClaim
from leakbench.privacy.discrete import DiscreteMechanism
from leakbench.privacy.ledger import Schedule, Unit
from leakbench.privacy.mechanism import AnyMechanism, Mechanism, Mixture
from leakbench.privacy.observers import Observation, Released, observations
from leakbench.privacy.of_clients import REPLACEMENT
from leakbench.privacy.renyi import Reals

__all__ = ["audit", "audit_cell", "audit_training", "valid_of_one"]

COARSE = 0.3
"""Share of an update's bound above which the differences that come from a grid could hide others."""

PLAYED = 200_000
"""Default number of trainings of each world whose noise is correlated over the rounds."""

MEASURED_TO = 0.02
"""Relative tolerance of a measured noise multiplier."""


def audit(
    request: Request,
    data_dir: Path | None,
    delta: float,
    trials: int | None,
    function: str | Callable[..., Any] | None,
    sigma: float | None,
    clip: float | None,
    progress: Progress = unreported,
) -> Audit:
    """Audit the defense of a request, or a user's own function.

    Args:
        request: The federation and the defense.
        data_dir: Folder of the data sets.
        delta: Delta of the epsilons, in (0, 1).
        trials: Number of trials with and without the canary; None for the default.
        function: A function to audit instead of the defense, or its name `package.module:name`.
        sigma: The function's stated noise multiplier.
        clip: The function's stated L2 bound.
        progress: Called with the number of finished trials.

    Raises:
        InputError: For a value outside its range, or options that do not fit together.
    """
    check_audit(delta, trials, function is not None, sigma, clip)
    if function is None:
        return audit_cell(plan(request, data_dir), delta, trials, progress)
    if request.defense != "none":
        raise InputError("callable: got --defense as well, expected one of the two")
    own = load_callable(function, os.getcwd()) if isinstance(function, str) else callable_release(function)
    cell = plan(request, data_dir)
    tensors = shapes(probe_of(cell.defense, cell.data, cell.settings))
    return audit_callable(own, tensors, cell.settings.seed, delta, trials, sigma, clip, progress)


def shapes(probe: FactProbe) -> dict[str, tuple[int, ...]]:
    """Return {parameter: shape} of the model that a cell trains."""
    return {name: tuple(p.shape) for name, p in probe.network.parameters.items()}


def audit_cell(cell: Cell, delta: float, trials: int | None = None, progress: Progress = unreported) -> Audit:
    """Audit the defense of a cell for the observer of released models, at `delta`.

    The audit covers the whole run if the ledger describes it as repeated Gaussian sums and the check agrees, else one release. Its
    canary is one example or one client, also if the cell's epsilon is for a person with several examples.
    """
    of_a_person = cell.settings.examples_per_person
    cell = _of_one(cell)
    defense, f, rng = cell.defense, cell.settings.federation, generator(cell.settings.seed, "audit")
    probe, partition = probe_of(defense, cell.data, cell.settings), hand_out(cell)
    schedule, training = ledger_of(defense, cell.data, cell.settings, partition)
    seen = observations(training, defense.unit, schedule)["global"]
    run, constant = _repeated(seen)
    one = _integer(seen) or run
    # If a release shows the number of drawn units, the worst case is a release of this unit alone, with only its own noise.
    alone = isinstance(seen, Released) and _shows_number(seen, defense.unit)
    members = 1 if alone else f.batch if defense.unit == "example" else f.clients_per_round
    clock = dataclasses.replace(defense.clock(f, 0), rounds=max(1, f.rounds))
    # Two updates of one client differ by up to a step in each coordinate because of the grid, and again with another seed.
    grid = 2 * one.noise.step * math.sqrt(one.noise.dimension) if isinstance(one, DiscreteMechanism) else 0.0
    release = DefenseRelease(defense.stations, defense.unit, members, clock, cell.settings.seed, probe)
    release, steady = _weakest(release, cell, rng)
    found = check(release, shapes(probe), rng, grid)
    sound = constant and found.gaussian and found.clip_holds
    scores = None
    # Replacement by another unit, as in cohorts without replacement, is another game.
    over_rounds = run if isinstance(run, Mechanism) and run.sampling == "poisson" and _over_rounds(cell) else None
    if over_rounds and sound and found.noise.even:
        turns = Turns(schedule.rounds, defense.cohorts, over_rounds.sampling_rate, found.moved or 0.0)
        scores = played(dataclasses.replace(release, clock=clock), turns, trials or PLAYED, progress)
    whole = sound and (steady or scores is not None)
    stated = _stated(cell, schedule, run, one, whole, delta)
    if of_a_person > 1 and defense.unit == "example":
        of_one = f"the audit and its epsilons are for one example, not for a person with {of_a_person}"
        stated = dataclasses.replace(stated, scope=f"{of_one}; {stated.scope}")
    if over_rounds and scores is not None:
        drawn = "the server's transforms drew the noise of all rounds of each trial"
        if over_rounds.sampling_rate < 1:
            drawn += ", and its draw of cohorts chose the rounds of the client"
        stated = dataclasses.replace(stated, scope=f"{stated.scope}; {drawn}")
    if isinstance(one, DiscreteMechanism) and grid > COARSE * one.noise.l2 * one.noise.step:
        coarse = "the grid is too coarse to tell whether the noise depends on the data and whether the clip holds"
        stated = dataclasses.replace(stated, scope=f"{coarse}; {stated.scope}")
    mechanism = run if run and whole else Mechanism(1.0, 1.0, 1)
    stated_sigma = getattr(defense.claim, "noise_multiplier", None)
    recipe = stated_sigma if isinstance(stated_sigma, float) else None
    result = judge(release, found, mechanism, stated, recipe, trials, delta, rng, progress, scores)
    return _against_ledger(result, _of_one_round(run, cell, release)) if run and constant else result


def _over_rounds(cell: Cell) -> bool:
    """Return whether noise over the rounds protects the unit; that of the server protects no single example."""
    return cell.defense.unit == "client" and any(getattr(t, "over_rounds", False) for t in cell.defense.server)


def _of_one_round(run: Mechanism | Mixture, cell: Cell, release: DefenseRelease) -> float:
    """Return the noise multiplier that the ledger has for the round of the release, by itself.

    Noise that is correlated over the rounds is larger there than what it counts for in a whole training.
    """
    facts = facts_at(cell.defense, release.probe, release.clock)
    noises, _ = calibrated(facts, cell.defense.unit, cell.settings.federation.batch)
    return min((n.std / n.bound for n in noises if n.training or n.participation), default=run.noise_multiplier)


def audit_training(cell: Cell, scores: Reals, included: Any, delta: float) -> OneRun:
    """Audit the training of a cell from the scores of its canaries, for the observer of released models.

    The family is that of the ledger with unknown noise, if all releases have the same noise.

    Args:
        scores: (m,), see `leakbench.federated.canaries`.
        included: (m,), bool.
        delta: Delta of the epsilons, in (0, 1).
    """
    cell = _of_one(cell)
    schedule, training = ledger_of(cell.defense, cell.data, cell.settings, hand_out(cell))
    run, constant = _repeated(observations(training, cell.defense.unit, schedule)["global"])
    return audit_one_run(
        scores, included, delta, cell.defense.unit, default_choices(len(scores)), run if constant else None
    )


def valid_of_one(cell: Cell, delta: float) -> float | None:
    """Return the valid epsilon of released models for what a canary is: one example or one client, never a person."""
    one = _of_one(cell)
    return cell_epsilon(one.defense, one.data, one.settings, hand_out(one), None, delta).valid


def _of_one(cell: Cell) -> Cell:
    """Return the cell with epsilons of one example or one client."""
    return dataclasses.replace(cell, settings=dataclasses.replace(cell.settings, examples_per_person=1))


def _shows_number(seen: Released, unit: Unit) -> bool:
    """Return whether the released model shows the number of drawn units, because each of them adds its own noise."""
    return any(m.sampling == "visible" for part in seen.parts for m in (part.one if unit == "example" else part.drawn))


def _against_ledger(result: Audit, expected: float) -> Audit:
    """Return the audit, with the verdict `violated` if the measured noise is less than the ledger assumes.

    Args:
        expected: Noise multiplier of the audited release in the ledger.
    """
    if result.sigma_measured is None or result.sigma_measured * (1 + MEASURED_TO) >= expected:
        return result
    reason = f"noise of {result.sigma_measured:.4g} was measured where the ledger has {expected:.4g}"
    return dataclasses.replace(result, verdict="violated", reason=f"{reason}; {result.reason}")


def _repeated(seen: Observation) -> tuple[Mechanism | Mixture | None, bool]:
    """Return (the mechanism of a training, True), or (one release with the least noise, False) if its releases differ."""
    if not isinstance(seen, Released):
        return None, False
    whole, several = seen.mechanisms[0], [m for part in seen.parts for m in part.one]
    same = len(seen.mechanisms) == 1 and (not isinstance(whole, Mixture) or len(whole.mechanisms) == 1)
    if same and isinstance(whole, Mechanism | Mixture):
        return whole, True
    least = min(several, key=lambda m: m.noise_multiplier)
    # The audit's curves are those of Gaussian noise, from which a sum of integers with the same noise hardly differs.
    if not isinstance(least, Mechanism):
        return Mechanism(least.noise_multiplier, 1.0, 1), False
    return dataclasses.replace(least, steps=1), False


def _integer(seen: Observation) -> DiscreteMechanism | None:
    """Return one release with integer noise that certainly uses the unit, the one with the least noise; None without any."""
    if not isinstance(seen, Released):
        return None
    several = [m for part in seen.parts for m in part.one if isinstance(m, DiscreteMechanism)]
    return dataclasses.replace(min(several, key=lambda m: m.noise_multiplier), steps=1) if several else None


def _weakest(release: DefenseRelease, cell: Cell, rng: torch.Generator) -> tuple[DefenseRelease, bool]:
    """Return the release at the moment with the least noise, and whether all tested moments have the same noise."""
    f = cell.settings.federation
    last = max(0, f.rounds - 1)
    when = {
        dataclasses.replace(release.clock, round=t, local_iteration=s)
        for t, s in ((0, 0), (last // 2, 0), (last, f.local_iterations - 1))
    }
    moments = [dataclasses.replace(release, clock=c) for c in sorted(when, key=lambda c: (c.round, c.local_iteration))]
    pair = neighbours(shapes(release.probe), release.members, (FAR,), rng)
    strengths = [strength(moment, pair) for moment in moments]
    least = min(range(len(moments)), key=strengths.__getitem__)
    return moments[least], max(strengths) <= 1.001 * min(strengths)


def _stated(
    cell: Cell, schedule: Schedule, run: Mechanism | Mixture | None, one: AnyMechanism | None, whole: bool, delta: float
) -> Stated:
    epsilon = cell_epsilon(cell.defense, cell.data, cell.settings, hand_out(cell), None, delta)
    zero_out = "replacement" if REPLACEMENT in epsilon.reason else "zero-out"
    if run is not None and whole:
        each = run.mechanisms[0] if isinstance(run, Mixture) else run
        q = "" if each.sampling_rate == 1 else f" at q={each.sampling_rate:.4g} ({each.sampling})"
        claimed = _claimed(cell.defense.claim, schedule, {"delta": delta})
        hidden = each.sampling == "poisson" and each.sampling_rate < 1 and schedule.groups == 1
        adjacency = "add-or-remove" if hidden else zero_out
        mean = " on average over the draw of clients" if isinstance(run, Mixture) else ""
        many = "1 release" if run.releases == 1 else f"{run.releases} releases"
        scope = f"all values are for the whole run, {many}{mean}{q}, {adjacency} adjacency"
        return Stated(claimed, epsilon.valid, epsilon.reason, scope)
    # One release that certainly uses the unit, without the run's number of steps and its sampling.
    once = dataclasses.replace(
        schedule,
        rounds=1,
        local_iterations=1,
        batch=schedule.examples_per_client,
        clients_per_round=schedule.clients,
        groups=1,
        largest=None,
    )
    # If the noise changes over the run, the claim is for all releases together and gives nothing for one of them.
    changes = run is not None and run.releases == 1 and schedule.rounds * schedule.local_iterations > 1
    claimed = None if changes else _claimed(cell.defense.claim, once, {"delta": delta, "extra_rounds": 0})
    valid = None
    if epsilon.valid is not None and one is not None:
        certain = one if isinstance(one, DiscreteMechanism) else Mechanism(one.noise_multiplier, 1.0, 1)
        valid = best((certain,), delta)[0]
    if _over_rounds(cell):
        scope = (
            f"what is audited is one round by itself; the valid epsilon is for all {schedule.rounds} rounds together, whose noise"
            " is correlated (`leakbench run --canaries` audits a whole training)"
        )
        return Stated(claimed, valid, epsilon.reason, scope)
    others = "" if schedule.rounds == 1 else f", not of the {schedule.rounds} rounds"
    scope = f"all values are for one release with the unit in it (q=1), {zero_out} adjacency{others}"
    return Stated(claimed, valid, epsilon.reason, scope)


def _claimed(claim: Claim, schedule: Schedule, changes: dict[str, float]) -> float | None:
    """Return the claimed epsilon at the audit's delta instead of the claim's own; None if it is not finite."""
    if isinstance(claim, NoClaim):
        return None
    known: Any = claim
    fields = {f.name for f in dataclasses.fields(known)}
    value = dataclasses.replace(known, **{k: v for k, v in changes.items() if k in fields})(schedule).epsilon
    return value if value is not None and value < float("inf") else None
