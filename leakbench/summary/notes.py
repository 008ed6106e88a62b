"""Why something in a summary has no value, and what a reader of it has to know."""

from __future__ import annotations

import math
from typing import Any

import pandas as pd

from leakbench.attack.servers.server import lies
from leakbench.cell import Cell, leak_federation
from leakbench.cell.victim_mode import leaks_by_batch
from leakbench.core.leakage_points import LeakagePoint
from leakbench.core.verdict_words import INCONCLUSIVE, NO_LEAK
from leakbench.measure.measures import MEASURES, SSIM, undefined
from leakbench.measure.rates import ASR, EXCLUDABLE, LABELS, PRECISION, RECOGNISED, VERBATIM
from leakbench.models.references import shown
from leakbench.scoring.scores import RANKS_ONLY
from leakbench.storage.summary import Tap
from leakbench.summary.rankings import ranking_notes, told_notes
from leakbench.summary.tables import table_notes
from leakbench.summary.tap import fit_notes
from leakbench.summary.targets import target_notes
from leakbench.summary.texts import text_notes

__all__ = ["epsilon_notes", "limit_notes", "network_notes", "tap_notes", "training_notes"]

STATISTICS_USED = {
    "batch": (
        "an attacker reads the update, not the running statistics of batch normalisation that go with it, and takes a guess's own"
        " statistics for the victims'"
    ),
    "running": (
        "the attacker normalises its guess by the running statistics that the server sent, which is not what the victims did: the"
        " true examples do not explain the update"
    ),
    "proxy": "the attacker compares the statistics of its guess with those of public examples",
    "given": "the attacker is given the statistics of the victim's batch, which a gradient does not show: a strong assumption",
    "inferred": (
        "the attacker also reads the running statistics that the client sends, and solves them for the statistics of the victim's"
        " batch"
    ),
}
"""{choice of statistics: what the attacker does}, see `leakbench.experiment.statistics`."""

SILENT = (
    *(ASR.name, "asr_exact", "asr_above_null", PRECISION.name, VERBATIM.name, "failures", LABELS.name, "iterations"),
    *(measure.name for measure in MEASURES),
    "identified_by_reconstruction",
)
"""What then has no value."""


def network_notes(cell: Cell) -> dict[str, str]:
    """Return which networks were used where a recipe names its own."""
    s, notes = cell.settings, {}
    if leaks_by_batch(s.victim_mode, s.leaking, cell.data.layout, cell.data.outputs):
        notes["victim_mode"] = f"train: {STATISTICS_USED[s.statistics]}"
    if cell.data.resized:
        notes["size"] = cell.data.resized
    if s.federation.client_optimizer == "adam":
        notes["client_optimizer"] = (
            "adam: what leaks of an update is the mean of the directions of the local steps, m / (sqrt(v) + 1e-8), which is in"
            " no unit of a gradient; after one local iteration it is nearly the signs"
        )
    if s.federation.epochs and s.protocol == "live":
        f = leak_federation(cell)
        notes["epochs"] = (
            f"{f.epochs}: a client passes so many times over its examples, in {f.local_iterations} local iterations; an attacker"
            " does not know the order, and each example counts once"
        )
    if s.federation.algorithm == "scaffold":
        notes["algorithm"] = (
            "scaffold: the control variate that a client sends too is a function of its update and of the server's, so that it"
            " shows nothing else"
        )
    if lies(cell.attack.server):
        notes["threat"] = (
            "the epsilons are of a server that trains the network it has; for the leaks of a lying server, the bounds at each"
            " leakage point count the layers that were sent"
        )
    for field, used, whose, wanted in (
        ("model", s.model, "defense", cell.defense.model),
        ("leak_model", s.leak_model, "attack", cell.attack.leak_model),
        ("leak_model", s.leak_model, "defense", cell.defense.leak_model),
    ):
        if wanted and (field == "model" or s.protocol == "paper"):
            how = f"for which the {whose}'s recipe asks" if used == wanted else f"not the {whose}'s {wanted}"
            notes[field] = f"{shown(used)} {'is trained' if field == 'model' else 'leaks'}, {how}"
    return notes


def limit_notes(cell: Cell) -> dict[str, str]:
    """Return that rows depend on the machine where a limit on seconds was set."""
    if cell.settings.budget is None:
        return {}
    return {
        "budget": f"all attacks had {cell.settings.budget:g} seconds together: how far a search came depends on the speed of the"
        " machine; --evaluations is the limit that repeats"
    }


def training_notes(cell: Cell, rounds: pd.DataFrame) -> dict[str, str]:
    """Return what happened to the training of a cell, from its rows a round."""
    notes = {}
    finite = rounds["loss"].map(math.isfinite)
    if not finite.all():
        first = int(rounds.loc[~finite, "round"].iloc[0])
        notes["training"] = f"diverged in round {first + 1}: from then on the model gives no finite answer"
        if cell.settings.canaries:
            notes["audited"] = "not audited: the training diverged, so that its canaries have no finite scores"
    said = []
    if cell.settings.stop_after is not None:
        said.append(
            f"stopped after {cell.settings.stop_after} of {cell.settings.federation.rounds}: the next would spend more than"
            " the budget"
        )
    aborted = int((rounds["update_scale"].isna() & finite).sum())
    if aborted and cell.defense.on_dropout == "abort":
        said.append(f"{aborted} of {len(rounds)} were aborted, since a client failed")
    still = int((rounds["update_scale"] == 0).sum())
    if still:
        said.append(f"{still} of {len(rounds)} changed nothing: no client took part, or all updates were 0")
    if said:
        notes["rounds"] = "; ".join(said)
    if rounds.empty:
        notes["accuracy"] = "no round was trained (--train-rounds 0)"
    return notes


def epsilon_notes(cell: Cell, epsilon: dict[str, Any]) -> dict[str, str]:
    """Return why an epsilon has no value, and which network and how many rounds the epsilons of the leakage points describe."""
    notes = {} if epsilon["valid"] is not None else {"valid": epsilon["reason"]}
    if epsilon.get("realised") is not None:
        notes["realised"] = (
            "the figure for the participations that this run counted for its worst unit; it is not an epsilon"
        )
    if epsilon["claimed"] is None:
        notes["claimed"] = epsilon["claimed_formula"] or epsilon["reason"]
    if cell.settings.protocol == "paper":
        notes["by_tap"] = "for the trained model; the leak above is from another network, as the protocol says"
    else:
        notes["by_tap"] = "for all trained rounds, whichever of them leaked above"
    return {f"epsilon.{name}": note for name, note in notes.items()}


def tap_notes(key: str, tap: Tap, group: pd.DataFrame, cell: Cell) -> dict[str, str]:
    """Return the notes on one leakage point's measurements."""
    notes = table_notes(key, tap) | text_notes(key, tap) | fit_notes(key, tap) | ranking_notes(key, tap)
    absent = undefined(cell.data.layout)
    reasons = {measure.name: measure.absent for measure in MEASURES if measure.absent} | absent
    if tap.null_recognised is None:
        without = (RECOGNISED.name, RECOGNISED.baseline, "gallery")
        notes |= {f"taps.{key}.{name}": absent.get(SSIM.name, "no value") for name in without}
    for name in (measure.name for measure in MEASURES):
        if tap.value(name) is None:
            failed = "more than half of the trials failed" if group["failure"].mean() > 0.5 else "no value"
            notes[f"taps.{key}.{name}"] = reasons.get(name, failed)
    notes |= told_notes(key, tap) | _verdict_notes(key, tap) | target_notes(key, tap, cell.settings.loss)
    if tap.asr is None:
        silent = SILENT if tap.null_recognised is None else (*SILENT, RECOGNISED.name)
        return notes | {f"taps.{key}.{name}": RANKS_ONLY for name in silent}
    if tap.precision is None:
        notes[f"taps.{key}.precision"] = "no answer was given"
    if tap.asr_above_null is None:
        notes[f"taps.{key}.asr_above_null"] = "the baseline guess alone succeeds everywhere"
    if tap.iterations is None:
        notes[f"taps.{key}.iterations"] = "fewer than half of the examples were reconstructed within eta"
    if LeakagePoint.of(key).tap == "type-0" and cell.defense.aggregation == "secure":
        clients = cell.settings.federation.clients_per_round
        notes[f"taps.{key}"] = (
            f"read from the mean update of {clients} clients: with secure aggregation no single one reaches the server"
        )
    elif key == "type-0" and cell.defense.server:
        notes["taps.type-0"] = (
            "read after the server's station, the paper's convention; a server that reads updates on arrival sees"
            " the client update (type-1)"
        )
    return notes


def _verdict_notes(key: str, tap: Tap) -> dict[str, str]:
    """Return why the verdict of a leakage point names no command, no excluded rate or no guarantee."""
    missing = [rate.excluded for rate in EXCLUDABLE if tap.value(rate.excluded) is None]
    decided = tap.verdict != INCONCLUSIVE
    notes = dict.fromkeys(
        missing, "not measured" if tap.verdict in (INCONCLUSIVE, NO_LEAK) else tap.verdict_reason or ""
    )
    if tap.verdict_command is None:
        notes["verdict_command"] = (
            "the verdict needs no other run" if decided else "a longer run of autoleak may not supply what is missing"
        )
    if tap.identified_by_reconstruction is None:
        notes["identified_by_reconstruction"] = "no reconstruction was compared with the candidates"
    return {f"taps.{key}.{name}": note for name, note in notes.items()}
