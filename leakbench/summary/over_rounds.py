"""Leakage as training goes on: one leakage point's success against the round, and the round in which most leaked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from leakbench.measure.rankings import ONE_EACH

__all__ = ["over_rounds"]

CURVES = (
    "asr",
    "asr_low",
    "asr_high",
    "null_asr",
    *(f"{name}{end}" for name in ONE_EACH for end in ("", "_low", "_high")),
    "label_accuracy",
    "rmse",
)


def over_rounds(taps: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return {tap: {`rounds`: [...], measure: [...], `worst`: round}} of the taps that leaked at two rounds or more.

    taps: {`tap@round`: measurements}.  worst: where the ASR is highest; among equals, where more were identified, labels were
    told better, and the round came first. An attack that only ranks goes by what it identifies.
    """
    found: dict[str, list[Mapping[str, Any]]] = {}
    for key, tap in taps.items():
        found.setdefault(key.partition("@")[0], []).append(tap)
    return {name: _curve(several) for name, several in found.items() if len(several) > 1}


def _curve(several: list[Mapping[str, Any]]) -> dict[str, Any]:
    def leaked(tap: Mapping[str, Any]) -> tuple[float, ...]:
        return tuple(-1.0 if tap[name] is None else tap[name] for name in ("asr", "identified", "label_accuracy"))

    worst = max(several, key=lambda tap: (*leaked(tap), -tap["round"]))
    return {
        "rounds": [tap["round"] for tap in several],
        **{name: [tap[name] for tap in several] for name in CURVES},
        "worst": worst["round"],
    }
