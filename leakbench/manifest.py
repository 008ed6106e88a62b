"""Whether a manifest is one that a run wrote: what its fields are, as far as anything reads them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from leakbench.errors import InputError

__all__ = ["check_manifest", "needed"]

CURE = "move the folder away to measure again"

OF_TOP: dict[str, tuple[type, ...]] = {
    "hash": (str,),
    "command": (str,),
    "complete": (bool,),
    "cell": (dict,),
    "recipes": (dict,),
    "settings": (dict,),
    "phases": (dict,),
    "files": (dict,),
    "summary": (dict,),
}

OF_SUMMARY: dict[str, tuple[type, ...]] = {
    "cell": (dict,),
    "accuracy": (int, float, type(None)),
    "rounds": (int,),
    "epsilon": (dict,),
    "taps": (dict,),
    "violations": (list,),
    "warnings": (list,),
    "notes": (dict,),
}

OF_TAP: dict[str, tuple[type, ...]] = {
    "round": (int,),
    "batch": (int, type(None)),
    "victims": (int, type(None)),
    "candidates": (int, type(None)),
    "asr": (int, float, type(None)),
    "null_asr": (int, float, type(None)),
    "identified": (int, float, type(None)),
    "verdict": (str,),
}

WITHIN = ("attributes", "anytime", "doubts", "unanswered", "seen")
"""What of a leakage point is no single value."""

SHARES = (
    "asr",
    "null_asr",
    "identified",
    "label_ranked",
    "label_accuracy",
    "verbatim",
    "feature_accuracy",
    "record_match",
)


def check_manifest(path: Path, manifest: Mapping[str, Any]) -> None:
    """Raise InputError, with the file and the field, for a manifest of a finished run whose fields are of other types.

    One of a run that is not finished has no summary, and is checked by who goes on with it; what a reader needs it asks `needed`.
    """
    if manifest.get("complete") is not True or "summary" not in manifest:
        return
    _types(path, "", manifest, OF_TOP)
    _texts(path, "files", manifest.get("files", {}))
    _texts(path, "cell", {k: v for k, v in manifest.get("cell", {}).items() if k != "seed"})
    for name, seconds in manifest.get("phases", {}).items():
        _number(path, f"phases.{name}", seconds)
    summary = manifest["summary"]
    _types(path, "summary.", summary, OF_SUMMARY)
    _number(path, "summary.accuracy", summary.get("accuracy"), most=1.0)
    _texts(path, "summary.notes", summary.get("notes", {}))
    for place, warning in enumerate(summary.get("warnings", [])):
        _is(path, f"summary.warnings.{place}", warning, (str,))
    for name in ("claimed", "valid"):
        _number(path, f"summary.epsilon.{name}", summary.get("epsilon", {}).get(name))
    if "taps" in summary and not summary["taps"]:
        raise InputError(f"{path}: summary.taps: got none, expected one or more; {CURE}")
    for name, tap in summary.get("taps", {}).items():
        _tap(path, f"summary.taps.{name}", tap)


def needed(path: Path, manifest: Mapping[str, Any], *fields: str) -> None:
    """Raise InputError, with the file, for a field, written with dots, that a manifest has not."""
    for field in fields:
        at: Any = manifest
        for name in field.split("."):
            if not isinstance(at, Mapping) or name not in at:
                raise InputError(f"{path}: {field} is missing; {CURE}")
            at = at[name]


def _tap(path: Path, place: str, tap: Any) -> None:
    _is(path, place, tap, (dict,))
    _types(path, f"{place}.", tap, OF_TAP)
    for name in ("batch", "victims", "candidates"):
        if tap.get(name) is not None and tap[name] < 1:
            raise InputError(f"{path}: {place}.{name}: got {tap[name]}, expected at least 1; {CURE}")
    for name, value in tap.items():
        if name in WITHIN:
            _is(path, f"{place}.{name}", value, (dict, type(None)))
        elif name != "verdict":
            _number(path, f"{place}.{name}", value, most=1.0 if name in SHARES else math.inf, least=-math.inf)


def _types(path: Path, place: str, fields: Mapping[str, Any], known: Mapping[str, tuple[type, ...]]) -> None:
    for name, kinds in known.items():
        if name in fields:
            _is(path, f"{place}{name}", fields[name], kinds)


def _texts(path: Path, place: str, texts: Mapping[str, Any]) -> None:
    for name, text in texts.items():
        _is(path, f"{place}.{name}", text, (str,))


def _is(path: Path, place: str, value: Any, kinds: tuple[type, ...]) -> None:
    if type(value) not in kinds:
        expected = " or ".join("nothing" if kind is type(None) else kind.__name__ for kind in kinds)
        raise InputError(f"{path}: {place}: got {str(value)[:40]!r}, expected {expected}; {CURE}")


def _number(path: Path, place: str, value: Any, most: float = math.inf, least: float = 0.0) -> None:
    _is(path, place, value, (int, float, type(None)))
    if value is not None and not (math.isfinite(value) and (0.0 if most == 1.0 else least) <= value <= most):
        raise InputError(f"{path}: {place}: got {value}, expected a number that a run can give; {CURE}")
