"""What was measured at one leakage point, from its rows."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd

from leakbench.measure.measures import MEASURES, RMSE
from leakbench.measure.rates import ASR, EXCLUDABLE, LABELS, PRECISION, RECOGNISED, VERBATIM
from leakbench.measure.statistics import exact, proportion
from leakbench.storage.summary import Tap
from leakbench.summary.evidence import Setup, evidence_of, networks_in
from leakbench.summary.limits import verbatim_fields
from leakbench.summary.rankings import ranking_fields, told_fields
from leakbench.summary.tables import table_fields
from leakbench.summary.targets import target_fields
from leakbench.summary.texts import text_fields
from leakbench.summary.verdict import verdict
from leakbench.summary.warnings import doubts

__all__ = ["LEARNS_NOTHING", "POINTS", "anytime", "fit_notes", "tap_summary", "unanswered"]

UNSAID = (
    *("failures", *ASR.ends, "asr_exact_low", "asr_exact_high", "asr_above_null"),
    *(*RECOGNISED.ends, *VERBATIM.ends, LABELS.name),
)
"""Fields without a value for an attack that only ranks."""


def tap_summary(group: pd.DataFrame, seconds: float, setup: Setup | None = None) -> Tap:
    """Return the measurements of a leakage point and the verdict on it; None for missing values.

    Args:
        group: The rows of the leakage point.
        seconds: Duration of the attack.
        setup: How the rows were measured; None for the weakest evidence.
    """
    network = group["network"]
    asr, low, high = proportion(group["success"].to_numpy(), group["batch"].to_numpy(), network=network)
    _, exact_low, exact_high = exact(group["success"].to_numpy(), group["batch"].to_numpy(), network=network)
    # The baseline guess does not see the network.
    null, null_low, null_high = proportion(group["null_success"].to_numpy(), group["batch"].to_numpy())
    found: dict[str, Any] = {
        "round": int(group["round"].iloc[0]),
        "batch": int(group["member"].max()) + 1,
        "victims": int(group["victim"].nunique()),
        "networks": networks_in(group),
        "failures": int(group["failure"].sum()),
        **dict(zip(ASR.ends, (asr, low, high), strict=True)),
        "asr_exact_low": exact_low,
        "asr_exact_high": exact_high,
        "asr_above_null": None if null == 1 else (asr - null) / (1 - null),
        PRECISION.name: _precision(group),
        **verbatim_fields(group),
        ASR.baseline: null,
        f"{ASR.baseline}_low": null_low,
        f"{ASR.baseline}_high": null_high,
        **_recognised(group),
        **told_fields(group),
        "candidates": int(group["candidates"].min()),
        "eta": float(group["eta"].iloc[0]),
        RMSE.baseline: _number(float(group[RMSE.baseline].median())),
        **{measure.name: _median(group[measure.name], measure.worst) for measure in MEASURES},
        LABELS.name: float((group["label"] == group["label_guess"]).mean()),
        "iterations": _number(group["iterations_to_success"].fillna(math.inf).median()),
        "evaluations": int(group["evaluations"].median()),
        **ranking_fields(group),
        **table_fields(group),
        **text_fields(group),
        **target_fields(group),
        "seconds": round(seconds, 2),
        **_fit_fields(group),
        "anytime": anytime(group),
        "doubts": doubts(group),
        "unanswered": unanswered(group),
    }
    setup = setup or Setup()
    evidence = evidence_of(group, Tap.model_validate(found), setup)
    result = verdict(evidence)
    unsaid = dict.fromkeys(UNSAID) if evidence.ranks_only else {}
    excluded = {rate.excluded: result.excluded.get(rate.name) for rate in EXCLUDABLE}
    words = {
        "verdict": result.word,
        "verdict_reason": result.reason,
        "verdict_command": (setup.command if result.decidable else "") or None,
    }
    return Tap.model_validate({**found, **unsaid, **words, **excluded})


def _precision(group: pd.DataFrame) -> float | None:
    """Return which share of the answers that were given is right; None where none was given."""
    given = int((~group["failure"]).sum())
    return float(group["success"].sum()) / given if given else None


def _recognised(group: pd.DataFrame) -> dict[str, float | int | None]:
    """Return the share recognised with its interval, the baseline's share, and the fewest other pictures.

    None without pictures, and for the first three where the attack only ranks.
    """
    fields = RECOGNISED.ends
    if RECOGNISED.baseline not in group or group[RECOGNISED.baseline].isna().any():
        return dict.fromkeys((*fields, RECOGNISED.baseline, "gallery"))
    batch, network = group["batch"].to_numpy(), group["network"]
    ranks_only = group[RECOGNISED.column].isna().any()
    found = (
        (None, None, None) if ranks_only else proportion(group[RECOGNISED.column].to_numpy(), batch, network=network)
    )
    guessed = proportion(group[RECOGNISED.baseline].to_numpy(), batch)
    return {
        **dict(zip(fields, found, strict=True)),
        RECOGNISED.baseline: guessed[0],
        "gallery": int(group["gallery"].min()) if "gallery" in group else None,
    }


def _median(values: pd.Series, worst: float) -> float | None:
    """Return the median over all examples, a failed one counting as the worst; None where no example has a value."""
    if values.isna().all():
        return None
    return _number(float(values.fillna(worst).median()))


def _number(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


def unanswered(group: pd.DataFrame) -> dict[str, dict[str, int]]:
    """Return {key of `leakbench.measure.unanswered`: of how many `examples` of how many `victims`}, most examples first."""
    failed = group[group["failure"].astype(bool) & (group["failure_reason"] != "")]
    each = failed.groupby("failure_reason", sort=True)
    found = [(str(why), {"examples": len(of), "victims": int(of["victim"].nunique())}) for why, of in each]
    return dict(sorted(found, key=lambda item: -item[1]["examples"]))


LEARNS_NOTHING = "the attack learns nothing before it answers"

FIT_FIELDS = ("fit_seconds", "fit_public")


def _fit_fields(group: pd.DataFrame) -> dict[str, float | int | None]:
    """Return what was learned for a leakage point: the seconds when it was learned, and from how many public examples.

    Where some victims needed less of it (a worst case of several attacks), the most that any of them needed; None where nothing was
    learned.
    """
    if FIT_FIELDS[0] not in group or group["fit_public"].isna().all():
        return dict.fromkeys(FIT_FIELDS)
    return {"fit_seconds": round(float(group["fit_seconds"].max()), 2), "fit_public": int(group["fit_public"].max())}


def fit_notes(key: str, tap: Tap) -> dict[str, str]:
    """Return the reason for missing fields of `_fit_fields`."""
    return {f"taps.{key}.{name}": LEARNS_NOTHING for name in FIT_FIELDS if tap.value(name) is None}


POINTS = 40
"""How many points a curve has at most."""


def anytime(group: pd.DataFrame) -> dict[str, Any]:
    """Return {`iterations`, `evaluations`: {`at`: [...], `asr`: [...]}} of one leakage point's rows.

    An answer counts from the first kept iteration (each of the first 40, then 10 % apart) on from which the attacker's best guess
    by its own distance was within eta and stayed there, so that the curve ends at the ASR.
    """
    each = group.drop_duplicates("victim")
    ends = {name: float(each[name].max()) for name in ("iterations", "evaluations")}
    return {name: _anytime_curve(group[f"{name}_to_success"], end) for name, end in ends.items()}


def _anytime_curve(reached: pd.Series, most: float) -> dict[str, list[float]]:
    found = np.sort(reached.dropna().to_numpy(dtype=float))
    at = np.unique(np.append(found, most))
    if len(at) > POINTS:
        at = at[np.linspace(0, len(at) - 1, POINTS).round().astype(int)]
    share = np.searchsorted(found, at, side="right") / len(reached)
    return {"at": at.tolist(), ASR.name: share.tolist()}
