"""From rows to the one object that `run --json` prints and that the table and the report show."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from leakbench.attack.servers.fishing import fished
from leakbench.cell import Cell, changed_federation, knowledge, leak_federation, looks_at, random_at
from leakbench.core.leakage_points import LeakagePoint, listed, point_name
from leakbench.core.request import CLASS
from leakbench.experiment.conspicuous import Conspicuous
from leakbench.limits.limits import Limits
from leakbench.measure.measures import RMSE
from leakbench.measure.rates import ASR, LABEL_RANKED, LABELS
from leakbench.models.references import shown
from leakbench.models.trainable import ALL
from leakbench.scoring.rankings import ONE_EACH
from leakbench.storage.summary import PrintedNumber, Summary, Tap, Violation
from leakbench.summary.evidence import setup_of
from leakbench.summary.limits import CANDIDATES, LIMIT, guaranteed, limited
from leakbench.summary.notes import epsilon_notes, limit_notes, network_notes, tap_notes, training_notes
from leakbench.summary.tap import tap_summary
from leakbench.summary.threat import letter
from leakbench.summary.utility import utility
from leakbench.summary.warnings import warnings

__all__ = ["over_rounds", "summarise"]


def summarise(
    cell: Cell,
    rows: pd.DataFrame,
    rounds: pd.DataFrame,
    epsilon: dict[str, Any],
    limits: Mapping[str, Limits],
    phases: dict[str, float],
    folder: str,
    seen: Conspicuous | None = None,
) -> Summary:
    """Return the summary of a finished cell; a missing value is given as None, with its reason under `notes`."""
    s, seen, wanted = cell.settings, seen or Conspicuous(), fished(cell.attack.server)
    notes: dict[str, str] = {}
    violations: list[Violation] = []
    taps: dict[str, Tap] = {}
    points = len(rows[["round", "tap"]].drop_duplicates())
    for (number, tap), group in rows.groupby(["round", "tap"], sort=False):
        round_number = int(str(number))
        point = s.point(str(tap), round_number)
        key = point.key
        setup = setup_of(cell, int(group["member"].max()) + 1)
        found = tap_summary(group, phases.get(point.phase, 0.0), setup)
        found = found.replaced(observations=looks_at(cell, point.tap), **_grid(cell, point.tap, round_number))
        if s.loss != CLASS:
            found = found.replaced(**dict.fromkeys((LABELS.name, *LABEL_RANKED.ends)))
        taps[key], why, broken = limited(key, found, group, limits[key], points)
        notes.update(tap_notes(key, taps[key], group, cell) | why)
        violations += broken
        taps[key] = taps[key].replaced(guaranteed=guaranteed(taps[key], broken))
        if taps[key].guaranteed is None:
            notes[f"taps.{key}.guaranteed"] = (
                f"no bound on the identification rate of at most {LIMIT:g} among at most {CANDIDATES:,} candidates"
            )
    notes |= training_notes(cell, rounds) | network_notes(cell) | epsilon_notes(cell, epsilon) | _look_notes(cell)
    notes |= seen.notes | limit_notes(cell)
    fields = {
        "cell": {**cell.names, "seed": s.seed, "hash": cell.hash},
        "protocol": s.protocol,
        "model": shown(s.model),
        **({"leak_model": shown(s.leak_model)} if s.protocol == "paper" else {}),
        **({"victim_mode": s.victim_mode} if s.victim_mode else {}),
        "init": s.init,
        **({} if s.trainable == ALL else {"trainable": s.trainable}),
        **({} if s.loss == CLASS else {"loss": s.loss}),
        "reads": s.reads,
        "client_optimizer": s.federation.client_optimizer,
        **changed_federation(s.federation),
        "join_rounds": s.join_rounds,
        "observations": s.observations,
        "threat": cell.attack.server.threat,
        "threat_letter": letter(cell.attack, s.statistics),
        **({} if wanted is None else {"fished": wanted}),
        "conspicuous": seen.found,
        "accuracy": None if rounds.empty else float(rounds["accuracy"].iloc[-1]),
        "rounds": len(rounds),
        **utility(rounds, cell.data, cell.recipe.federation),
        "epsilon": epsilon,
        "taps": taps,
        "over_rounds": over_rounds(taps),
        "violations": violations,
        "warnings": warnings(cell, taps, rounds),
        "notes": notes,
        "knowledge": {k: v for k, v in dataclasses.asdict(knowledge(cell)).items() if k != "statistics" or v},
        "claims": _claims(cell, taps, rounds, epsilon),
        "folder": folder,
    }
    return Summary.model_validate(fields)


def _grid(cell: Cell, tap: str, round_number: int) -> dict[str, int]:
    """Return of how many clients, of how many local iterations, of how many examples each the batch at a leakage point is."""
    s, f = cell.settings, leak_federation(cell)
    if tap == "type-2":
        return {"clients": 1, "local_iterations": 1, "local_batch": 1}
    return {
        "clients": cell.defense.clock(s.federation, round_number).cohort if cell.defense.shows_sum(tap) else 1,
        # Each epoch has the same examples.
        "local_iterations": f.local_iterations // (f.epochs or 1) if s.protocol == "live" else 1,
        "local_batch": s.leak_batch,
    }


CURVES = (
    *ASR.ends,
    ASR.baseline,
    *(f"{name}{end}" for name in ONE_EACH for end in ("", "_low", "_high")),
    LABELS.name,
    RMSE.name,
)


def over_rounds(taps: Mapping[str, Tap]) -> dict[str, dict[str, Any]]:
    """Return {tap: {`rounds`: [...], measure: [...], `worst`: round}} of the taps that leaked at two rounds or more.

    Args:
        taps: {`tap@round`: measurements}. worst: where the ASR is highest; among equals, where more were identified, labels were
            told better, and the round came first. An attack that only ranks goes by what it identifies.
    """
    found: dict[str, list[Tap]] = {}
    for key, tap in taps.items():
        found.setdefault(LeakagePoint.of(key).tap, []).append(tap)
    return {name: _curve(several) for name, several in found.items() if len(several) > 1}


def _curve(several: Sequence[Tap]) -> dict[str, Any]:
    def leaked(tap: Tap) -> tuple[float, ...]:
        return tuple(-1.0 if rate is None else rate for rate in (tap.asr, tap.identified, tap.label_accuracy))

    worst = max(several, key=lambda tap: (*leaked(tap), -tap.round))
    return {
        "rounds": [tap.round for tap in several],
        **{name: [tap.value(name) for tap in several] for name in CURVES},
        "worst": worst.round,
    }


def _look_notes(cell: Cell) -> dict[str, str]:
    """Return that a randomised defense was observed once, or where several observations would have been identical."""
    wanted = cell.settings.observations
    drawn = [tap for tap in cell.settings.taps if random_at(cell, tap)]
    if wanted == 1:
        once = "one observation of the random draws at the {}; an attacker with several (--observations) averages noise out"
        return {"observations": once.format(_named(drawn))} if drawn else {}
    same = [tap for tap in cell.settings.taps if tap not in drawn]
    of_them = f"; one at the {_named(same)}, where nothing is random and all would be identical" if same else ""
    return {"observations": f"{wanted} observations of each gradient, each a separate release{of_them}"}


def _named(taps: list[str]) -> str:
    return listed([point_name(tap) for tap in taps])


def _claims(cell: Cell, taps: Mapping[str, Tap], rounds: pd.DataFrame, epsilon: dict[str, Any]) -> list[PrintedNumber]:
    """Return the numbers that the paper prints for this defense and data set, each with our measurement and a comment."""
    dataset, of_paper = cell.names["dataset"], cell.recipe.federation.rounds
    trained = f"measured after {len(rounds)} rounds, the paper's are {of_paper}" if len(rounds) != of_paper else ""
    found = []
    for what, by_dataset in cell.defense.printed.items():
        if dataset not in by_dataset:
            continue
        measured, comment = None, ""
        if what == "accuracy":
            measured, comment = None if rounds.empty else float(rounds["accuracy"].iloc[-1]), trained
        elif what == "epsilon":
            measured = epsilon["claimed"]
            comment = "; ".join(
                c for c in (trained, "by the paper's formula; valid: " + _or_none(epsilon["valid"])) if c
            )
        elif (tap := _first_at(taps, what.removeprefix("rmse "))) is not None:
            measured, comment = tap.rmse, f"batch {tap.batch}; a median here, one picture there"
            if tap.null_rmse is not None and by_dataset[dataset] > tap.null_rmse:
                comment += f"; the printed value is not better than a guess without any gradient ({tap.null_rmse:.3f})"
        found.append(
            PrintedNumber(
                what=what,
                claimed=by_dataset[dataset],
                measured=measured,
                source=cell.defense.printed_by or cell.defense.cite,
                comment=comment,
            )
        )
    return found


def _first_at(taps: Mapping[str, Tap], name: str) -> Tap | None:
    """Return what was measured at a leakage point, where it leaked in several rounds at the first."""
    return next((tap for key, tap in taps.items() if LeakagePoint.of(key).tap == name), None)


def _or_none(value: float | None) -> str:
    return "none" if value is None else f"{value:.3f}"
