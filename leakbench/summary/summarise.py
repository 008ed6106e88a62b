"""From rows to the one object that `run --json` prints and that the table and the report show."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import pandas as pd

from leakbench.attack.servers.fishing import fished
from leakbench.cell import Cell, knowledge, leak_key, looks_at, phase_name
from leakbench.experiment.conspicuous import Conspicuous
from leakbench.limits.limits import Limits
from leakbench.summary.claims import claims
from leakbench.summary.evidence import setup_of
from leakbench.summary.guaranteed import CANDIDATES, LIMIT, guaranteed
from leakbench.summary.limits import limited
from leakbench.summary.looks import look_notes
from leakbench.summary.notes import epsilon_notes, limit_notes, network_notes, tap_notes, training_notes
from leakbench.summary.over_rounds import over_rounds
from leakbench.summary.tap import tap_summary
from leakbench.summary.threat import letter
from leakbench.summary.utility import utility
from leakbench.summary.warnings import warnings

__all__ = ["summarise"]


def summarise(
    cell: Cell,
    rows: pd.DataFrame,
    rounds: pd.DataFrame,
    epsilon: dict[str, Any],
    limits: Mapping[str, Limits],
    phases: dict[str, float],
    folder: str,
    seen: Conspicuous | None = None,
) -> dict[str, Any]:
    """Return the summary of a finished cell; what does not exist is None, with its reason under `notes`."""
    s, seen, wanted = cell.settings, seen or Conspicuous(), fished(cell.attack.server)
    notes: dict[str, str] = {}
    violations: list[dict[str, Any]] = []
    taps = {}
    points = len(rows[["round", "tap"]].drop_duplicates())
    for (number, tap), group in rows.groupby(["round", "tap"], sort=False):
        round_number = int(str(number))
        key = leak_key(cell, str(tap), round_number)
        setup = setup_of(cell, int(group["member"].max()) + 1)
        found = tap_summary(group, phases.get(phase_name(cell, str(tap), round_number), 0.0), setup)
        found["observations"] = looks_at(cell, str(tap))
        found |= _grid(cell, str(tap), round_number)
        taps[key], why, broken = limited(key, found, group, limits[key], points)
        notes.update(tap_notes(key, taps[key], group, cell) | why)
        violations += broken
        taps[key]["guaranteed"] = guaranteed(taps[key], broken)
        if taps[key]["guaranteed"] is None:
            notes[f"taps.{key}.guaranteed"] = (
                f"no bound on the identification rate of at most {LIMIT:g} among at most {CANDIDATES:,} candidates"
            )
    notes |= training_notes(cell, rounds) | network_notes(cell) | epsilon_notes(cell, epsilon) | look_notes(cell)
    notes |= seen.notes | limit_notes(cell)
    return {
        "cell": {**cell.names, "seed": s.seed, "hash": cell.hash},
        "protocol": s.protocol,
        "model": s.model,
        **({"leak_model": s.leak_model} if s.protocol == "paper" else {}),
        **({"victim_mode": s.victim_mode} if s.victim_mode else {}),
        "init": s.init,
        "reads": s.reads,
        "client_optimizer": s.federation.client_optimizer,
        "join_rounds": s.join_rounds,
        "observations": s.observations,
        "threat": cell.attack.server.threat,
        "threat_letter": letter(cell.attack),
        **({} if wanted is None else {"fished": wanted}),
        "conspicuous": seen.found,
        "accuracy": None if rounds.empty else float(rounds["accuracy"].iloc[-1]),
        "rounds": len(rounds),
        **utility(rounds, cell.data.test_targets, cell.recipe.federation),
        "epsilon": epsilon,
        "taps": taps,
        "over_rounds": over_rounds(taps),
        "violations": violations,
        "warnings": warnings(cell, taps, rounds),
        "notes": notes,
        "knowledge": dataclasses.asdict(knowledge(cell)),
        "claims": claims(cell, taps, rounds, epsilon),
        "folder": folder,
    }


def _grid(cell: Cell, tap: str, round_number: int) -> dict[str, int]:
    """Return of how many clients, of how many local iterations, of how many examples each the batch at a leakage point is."""
    s = cell.settings
    if tap == "type-2":
        return {"clients": 1, "local_iterations": 1, "local_batch": 1}
    return {
        "clients": cell.defense.clock(s.federation, round_number).cohort if cell.defense.shows_sum(tap) else 1,
        "local_iterations": s.federation.local_iterations if s.protocol == "live" else 1,
        "local_batch": s.leak_batch,
    }
