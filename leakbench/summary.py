"""From rows to the one object that `run --json` prints and that the table and the report show."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import pandas as pd
from scipy.stats import binomtest

from leakbench.anytime import anytime
from leakbench.cell import Cell
from leakbench.limits import Limits, leak_key, limited
from leakbench.over_rounds import over_rounds
from leakbench.scores import RANKS_ONLY
from leakbench.stage_attack import phase_name
from leakbench.statistics import exact, proportion, wilson
from leakbench.summary_tables import table_fields, table_notes
from leakbench.victim_mode import leaks_by_batch
from leakbench.victims import knowledge

__all__ = ["summarise"]

UNSAID = (
    "failures",
    "asr",
    "asr_low",
    "asr_high",
    "asr_exact_low",
    "asr_exact_high",
    "asr_above_null",
    "label_accuracy",
)
"""What an attack that only ranks says nothing of."""

SILENT = (
    *("asr", "asr_exact", "asr_above_null", "precision", "failures", "label_accuracy", "iterations"),
    *("rmse", "psnr", "ssim", "lpips"),
)
"""What then has no value."""

LEAST_VICTIMS = 10  # Of fewer, the null attacker's interval holds nearly everything.


def summarise(
    cell: Cell,
    rows: pd.DataFrame,
    rounds: pd.DataFrame,
    epsilon: dict[str, Any],
    limits: Mapping[str, Limits],
    phases: dict[str, float],
    folder: str,
) -> dict[str, Any]:
    """Return the summary of a finished cell; what does not exist is None, with its reason under `notes`."""
    s = cell.settings
    notes: dict[str, str] = {}
    violations: list[dict[str, Any]] = []
    taps = {}
    for (number, tap), group in rows.groupby(["round", "tap"], sort=False):
        round_number = int(str(number))
        key = leak_key(cell, str(tap), round_number)
        doubt = _doubt(cell, int(group["member"].max()) + 1)
        found = _tap(group, phases.get(phase_name(cell, str(tap), round_number), 0.0), bool(doubt))
        taps[key], why, broken = limited(key, found, group, limits[key])
        notes.update(_tap_notes(key, taps[key], group, cell) | why)
        violations += broken
        if doubt and taps[key].get("verdict") == "unclear":
            notes[f"taps.{key}.verdict"] = f"{doubt}: no evidence"
    if not rounds["loss"].map(math.isfinite).all():
        first = int(rounds.loc[~rounds["loss"].map(math.isfinite), "round"].iloc[0])
        notes["training"] = f"diverged in round {first + 1}: from then on the model gives no finite answer"
    aborted = int((rounds["update_scale"].isna() & rounds["loss"].map(math.isfinite)).sum())
    if aborted and cell.defense.on_dropout == "abort":
        notes["rounds"] = f"{aborted} of {len(rounds)} were aborted, since a client failed"
    if s.stop_after is not None:
        stopped = f"stopped after {s.stop_after} of {s.federation.rounds}: the next would spend more than the budget"
        notes["rounds"] = "; ".join(filter(None, [stopped, notes.get("rounds", "")]))
    if rounds.empty:
        notes["accuracy"] = "no round was trained (--train-rounds 0)"
    notes.update(_network_notes(cell))
    if s.protocol == "paper":
        notes["epsilon.by_tap"] = (
            "of the model that is trained; the leak above is from another network, as the protocol says"
        )
    if epsilon["claimed"] is None:
        notes["epsilon.claimed"] = epsilon["claimed_formula"] or epsilon["reason"]
    if epsilon["valid"] is None:
        notes["epsilon.valid"] = epsilon["reason"]
    return {
        "cell": {**cell.names, "seed": s.seed, "hash": cell.hash},
        "protocol": s.protocol,
        **({"victim_mode": s.victim_mode} if s.victim_mode else {}),
        "init": s.init,
        "threat": cell.attack.server.threat,
        "accuracy": None if rounds.empty else float(rounds["accuracy"].iloc[-1]),
        "rounds": len(rounds),
        "epsilon": epsilon,
        "taps": taps,
        "over_rounds": over_rounds(taps),
        "violations": violations,
        "notes": notes,
        "knowledge": dataclasses.asdict(knowledge(cell)),
        "claims": _claims(cell, taps, rounds, epsilon),
        "folder": folder,
    }


def _doubt(cell: Cell, batch: int) -> str:
    """Return why the ranking of candidates at a leakage point may miss what leaked there; empty where it does not."""
    if cell.defense.network:
        # What draws at random leaks in ways that a ranking by its mean does not see.
        return "the ranking goes by the mean path of a network that draws at random"
    if batch > 1 and _leaks_by_batch(cell):
        return (
            "the ranking takes each candidate's gradient by its own statistics, not by those of the batch that leaked"
        )
    return ""


def _leaks_by_batch(cell: Cell) -> bool:
    return leaks_by_batch(cell.settings.victim_mode, cell.settings.leaking, cell.data.shape, cell.data.classes)


def _network_notes(cell: Cell) -> dict[str, str]:
    """Return which networks were used where the defense's recipe names its own."""
    s, notes = cell.settings, {}
    if _leaks_by_batch(cell):
        notes["victim_mode"] = (
            "train: an attacker reads the update, not the running statistics of batch normalisation that go beside it, and"
            " takes a guess's own statistics for the victims'"
        )
    for field, used, wanted in (
        ("model", s.model, cell.defense.model),
        ("leak_model", s.leak_model, cell.defense.leak_model),
    ):
        if wanted and (field == "model" or s.protocol == "paper"):
            how = "for which the defense's recipe asks" if used == wanted else f"as asked, not the recipe's {wanted}"
            notes[field] = f"{used} {'is trained' if field == 'model' else 'leaks'}, {how}"
    return notes


def _tap(group: pd.DataFrame, seconds: float, doubtful: bool = False) -> dict[str, Any]:
    asr, low, high = proportion(group["success"].to_numpy(), group["batch"].to_numpy())
    _, exact_low, exact_high = exact(group["success"].to_numpy(), group["batch"].to_numpy())
    null, null_low, null_high = proportion(group["null_success"].to_numpy(), group["batch"].to_numpy())
    first = group.dropna(subset=["identified"])
    identified = float(first["identified"].mean())
    bounds = wilson(float(first["identified"].sum()), len(first))
    found = {
        "round": int(group["round"].iloc[0]),
        "batch": int(group["member"].max()) + 1,
        "victims": int(group["victim"].nunique()),
        "failures": int(group["failure"].sum()),
        "asr": asr,
        "asr_low": low,
        "asr_high": high,
        "asr_exact_low": exact_low,
        "asr_exact_high": exact_high,
        "asr_above_null": None if null == 1 else (asr - null) / (1 - null),
        "precision": _precision(group),
        "null_asr": null,
        "null_asr_low": null_low,
        "null_asr_high": null_high,
        "identified": identified,
        "identified_low": bounds[0],
        "identified_high": bounds[1],
        "candidates": int(group["candidates"].iloc[0]),
        "eta": float(group["eta"].iloc[0]),
        "null_rmse": _number(float(group["null_rmse"].median())),
        **{name: _median(group[name]) for name in ("rmse", "psnr", "ssim", "lpips")},
        "label_accuracy": float((group["label"] == group["label_guess"]).mean()),
        "iterations": _number(group["iterations_to_success"].fillna(math.inf).median()),
        "evaluations": int(group["evaluations"].median()),
        **table_fields(group),
        "seconds": round(seconds, 2),
        "anytime": anytime(group),
    }
    if (group["failure_reason"] == RANKS_ONLY).all():
        return {**found, **dict.fromkeys(UNSAID), "verdict": "no reconstruction"}
    return {**found, "verdict": _verdict(group, found, doubtful)}


def _precision(group: pd.DataFrame) -> float | None:
    """Return which share of the answers that were given is right; None where none was given."""
    given = int((~group["failure"]).sum())
    return float(group["success"].sum()) / given if given else None


def _median(values: pd.Series) -> float | None:
    """Return the median over all examples, a failed one counting as the worst; None where no example has a value."""
    if values.isna().all():
        return None
    worst = math.inf if values.name in ("rmse", "lpips") else -math.inf
    return _number(float(values.fillna(worst).median()))


def _number(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


def _verdict(group: pd.DataFrame, found: dict[str, Any], doubtful: bool) -> str:
    """Return `leaks`, `protected` or `unclear`, each against the null attacker, or what lies between.

    leaks: the ASR's interval lies above the null's estimate and the null's interval below the ASR, or significantly more
    than half of the victims are closer than the null's guess. protected: the ASR lies in the null's interval or below, and
    the median RMSE is not below the null's, and victims are not identified more often than by chance (binomial test at 1 %):
    else it `identifies`. `attack failed` where half of the victims or more got no answer. doubtful: whether the
    ranking may miss what leaked, so that nothing is `protected`.
    """
    better = proportion((group["rmse"] < group["null_rmse"]).to_numpy(), group["batch"].to_numpy())
    if (found["asr_low"] > found["null_asr"] and found["asr"] > found["null_asr_high"]) or better[1] > 0.5:
        return "leaks"
    first = group["identified"].dropna()
    if binomtest(int(first.sum()), len(first), 1 / found["candidates"], "greater").pvalue < 0.01:
        return "identifies"
    if found["rmse"] is None:
        return "attack failed"
    shown = found["asr"] <= found["null_asr_high"] and found["rmse"] >= found["null_rmse"]
    if shown and not doubtful and found["victims"] >= LEAST_VICTIMS:
        return "protected"
    return "unclear"


def _tap_notes(key: str, tap: dict[str, Any], group: pd.DataFrame, cell: Cell) -> dict[str, str]:
    from leakbench.metrics import LPIPS_ABSENT, undefined  # noqa: PLC0415

    notes = table_notes(key, tap)
    reasons = {"lpips": LPIPS_ABSENT, **undefined(cell.data.shape)}
    for name in ("rmse", "psnr", "ssim", "lpips"):
        if tap[name] is None:
            failed = "more than half of the trials failed" if group["failure"].mean() > 0.5 else "no value"
            notes[f"taps.{key}.{name}"] = reasons.get(name, failed)
    if tap["asr"] is None:
        return notes | {f"taps.{key}.{name}": RANKS_ONLY for name in SILENT}
    if tap["precision"] is None:
        notes[f"taps.{key}.precision"] = "no answer was given"
    if tap["asr_above_null"] is None:
        notes[f"taps.{key}.asr_above_null"] = "the null attacker alone succeeds everywhere"
    if tap["iterations"] is None:
        notes[f"taps.{key}.iterations"] = "fewer than half of the examples were reconstructed within eta"
    if key.partition("@")[0] == "type-0" and cell.defense.aggregation == "secure":
        clients = cell.settings.federation.clients_per_round
        notes[f"taps.{key}"] = (
            f"read from the mean update of {clients} clients: with secure aggregation no single one reaches the server"
        )
    elif key == "type-0" and cell.defense.server:
        notes["taps.type-0"] = (
            "read after the server's station, the paper's convention; a server that reads updates on arrival sees the type-1 row"
        )
    return notes


def _claims(cell: Cell, taps: dict[str, Any], rounds: pd.DataFrame, epsilon: dict[str, Any]) -> list[dict[str, Any]]:
    """Return what the paper prints for this defense and dataset, each beside our measurement, with what must be known of it."""
    dataset, of_paper = cell.names["dataset"], cell.recipe.federation.rounds
    trained = f"measured after {len(rounds)} of the paper's {of_paper} rounds" if len(rounds) != of_paper else ""
    found = []
    for what, by_dataset in cell.defense.printed.items():
        if dataset not in by_dataset:
            continue
        measured, comment = None, trained
        if what == "accuracy":
            measured = None if rounds.empty else float(rounds["accuracy"].iloc[-1])
        elif what == "epsilon":
            measured = epsilon["claimed"]
            comment = "; ".join(
                c for c in (comment, "by the paper's formula; valid: " + _or_none(epsilon["valid"])) if c
            )
        elif (tap := taps.get(what.removeprefix("rmse "))) is not None:
            measured, comment = tap["rmse"], f"batch {tap['batch']}; a median here, one picture there"
            if by_dataset[dataset] > tap["null_rmse"]:
                comment += (
                    f"; the printed value is no better than a guess without any gradient ({tap['null_rmse']:.3f})"
                )
        found.append(
            {
                "what": what,
                "claimed": by_dataset[dataset],
                "measured": measured,
                "source": cell.defense.cite,
                "comment": comment,
            }
        )
    return found


def _or_none(value: float | None) -> str:
    return "none" if value is None else f"{value:.3f}"
