"""Check that a run wrote a manifest: the types of all fields that are read."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from leakbench.core.errors import DamagedError, InputError
from leakbench.core.hashes import content_hash
from leakbench.core.untrusted import is_inside, said
from leakbench.storage import manifest_shapes as shapes

__all__ = [
    "CURE",
    "FORMATS",
    "check_files",
    "check_finished",
    "check_manifest",
    "check_seal",
    "check_shown",
    "needed",
    "sealed",
]

CURE = "move the folder away to measure again"

FORMATS = (1, 2)
"""Accepted versions of a manifest, in its field `schema`; the last one is written. From version 2 on, a manifest has a checksum of
all other fields, which reveals a changed figure."""

SEALED = 2
"""First version with a checksum."""

SHOWN = (
    *("hash", "command", "cell.dataset", "cell.defense", "cell.attack", "settings", "versions", "phases", "files"),
    *("summary.cell.defense", "summary.cell.attack", "summary.cell.dataset", "summary.accuracy", "summary.rounds"),
    *("summary.epsilon.valid", "summary.epsilon.claimed", "summary.epsilon.unit", "summary.epsilon.delta"),
    *("summary.taps", "summary.notes", "summary.claims", "summary.threat", "summary.protocol"),
)
"""Fields that a table and a page show of every run."""

SHOWN_OF_TAP = ("round", "batch", "victims", "failures", "candidates", "asr", "eta", "verdict", "seconds")
"""Fields that they show of each leakage point."""

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

WORDS = ("verdict_reason", "verdict_command")
"""Fields of a leakage point with a sentence or nothing."""

OF_TAP: dict[str, tuple[type, ...]] = {
    "round": (int,),
    "batch": (int, type(None)),
    "victims": (int, type(None)),
    "candidates": (int, type(None)),
    "verdict": (str,),
    **dict.fromkeys(WORDS, (str, type(None))),
}

WITHIN = ("attributes", "anytime", "doubts", "unanswered", "seen")
"""Fields of a leakage point with several values."""

SHARES = (
    "asr",
    "null_asr",
    "recognised",
    "null_recognised",
    "identified",
    "identified_by_likelihood",
    "identified_by_reconstruction",
    "label_ranked",
    "label_accuracy",
    "verbatim",
    "feature_accuracy",
    "record_match",
)


def check_manifest(path: Path, manifest: Mapping[str, Any]) -> None:
    """Raise DamagedError, with the file and the field, for a manifest of a finished run whose fields have other types.

    The manifest of an unfinished run has no summary; resuming checks it. Readers check the fields that they need with `needed`.
    """
    _shaped(path, "", manifest, shapes.OF_MANIFEST)
    if manifest.get("complete") is not True or "summary" not in manifest:
        return
    _types(path, "", manifest, OF_TOP)
    _texts(path, "files", manifest.get("files", {}))
    _texts(path, "cell", {k: v for k, v in manifest.get("cell", {}).items() if k != "seed"})
    for name, seconds in manifest.get("phases", {}).items():
        _number(path, f"phases.{name}", seconds)
    summary = manifest["summary"]
    _types(path, "summary.", summary, OF_SUMMARY)
    _shaped(path, "summary.", summary, shapes.OF_SUMMARY)
    known = summary.get("knowledge") or {}
    for name in shapes.KNOWLEDGE if known else ():
        if name not in known:
            raise DamagedError(f"{path}: summary.knowledge.{name} is missing", CURE)
    _shaped(path, "summary.epsilon.", summary.get("epsilon", {}), shapes.OF_EPSILON)
    _number(path, "summary.accuracy", summary.get("accuracy"), most=1.0)
    _texts(path, "summary.notes", summary.get("notes", {}))
    for place, warning in enumerate(summary.get("warnings", [])):
        _is(path, f"summary.warnings.{place}", warning, (str,))
    for name in ("claimed", "valid"):
        _number(path, f"summary.epsilon.{name}", summary.get("epsilon", {}).get(name))
    # An attack on an external update without the truth has no scores, and manifests with a kind do not belong to cells.
    if "taps" in summary and not summary["taps"] and "kind" not in manifest:
        raise DamagedError(f"{path}: summary.taps: got none, expected one or more", CURE)
    for name, tap in summary.get("taps", {}).items():
        _tap(path, f"summary.taps.{name}", tap)


def check_files(path: Path, manifest: Mapping[str, Any]) -> None:
    """Raise DamagedError for a manifest whose `files` are not {name inside the folder: checksum}."""
    files = manifest.get("files", {})
    if not isinstance(files, dict):
        raise DamagedError(f"{path}: files: got {type(files).__name__}, expected a mapping", CURE)
    for name, checksum in files.items():
        if not is_inside(name):
            raise DamagedError(f"{path}: files: got {said(name)}, expected names of files in the folder", CURE)
        _is(path, f"files.{said(name)}", checksum, (str,))


def sealed(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """Return a manifest in the last format, with its checksum."""
    content = {"schema": FORMATS[-1], **manifest} | {"schema": FORMATS[-1]}
    content.pop("checksum", None)
    return {**content, "checksum": content_hash(content)}


def check_seal(path: Path, manifest: Mapping[str, Any]) -> None:
    """Raise DamagedError for a manifest that does not fit its checksum; manifests from before checksums are accepted."""
    if "checksum" not in manifest and manifest.get("schema", SEALED) < SEALED:
        return
    if manifest.get("checksum") != content_hash(
        {name: value for name, value in manifest.items() if name != "checksum"}
    ):
        raise DamagedError(f"{path}: checksum: does not fit the rest, so that something in it was changed", CURE)


def needed(path: Path, manifest: Mapping[str, Any], *fields: str) -> None:
    """Raise InputError, with the file, for a missing field of a manifest; dots separate the levels of a field."""
    for field in fields:
        at: Any = manifest
        for name in field.split("."):
            if not isinstance(at, Mapping) or name not in at:
                kind = manifest.get("kind")
                raise InputError(
                    f"{path}: {field} is missing; {CURE}"
                    if kind is None
                    else f"{path}: the folder of an {kind}, which has no {field}; expected the folder of a run"
                )
            at = at[name]


def check_finished(path: Path, manifest: Mapping[str, Any]) -> None:
    """Raise InputError, with the file, for the manifest of a run that is not finished."""
    if "summary" not in manifest:
        raise InputError(f"{path}: has no summary; the run is not finished, run it again to go on")


def check_shown(path: Path, manifest: Mapping[str, Any]) -> None:
    """Raise InputError, with the file, for a missing field of a manifest that a table or a page shows."""
    of_taps = (f"summary.taps.{tap}.{name}" for tap in manifest["summary"].get("taps", ()) for name in SHOWN_OF_TAP)
    needed(path, manifest, *SHOWN, *of_taps)


def _tap(path: Path, place: str, tap: Any) -> None:
    _is(path, place, tap, (dict,))
    _types(path, f"{place}.", tap, OF_TAP)
    _shaped(path, f"{place}.", tap, shapes.OF_TAP)
    for name in ("batch", "victims", "candidates"):
        if tap.get(name) is not None and tap[name] < 1:
            raise DamagedError(f"{path}: {place}.{name}: got {tap[name]}, expected at least 1", CURE)
    for name, value in tap.items():
        if name in WITHIN:
            _is(path, f"{place}.{name}", value, (dict, type(None)))
        elif name not in ("verdict", *WORDS):
            _number(path, f"{place}.{name}", value, most=1.0 if name in SHARES else math.inf, least=-math.inf)


def _types(path: Path, place: str, fields: Mapping[str, Any], known: Mapping[str, tuple[type, ...]]) -> None:
    for name, kinds in known.items():
        if name in fields:
            _is(path, f"{place}{name}", fields[name], kinds)


def _shaped(path: Path, place: str, fields: Mapping[str, Any], known: Mapping[str, Any]) -> None:
    for name, shape in known.items():
        if name in fields and (said := shapes.misfit(fields[name], shape, f"{place}{name}")):
            raise DamagedError(f"{path}: {said}", CURE)


def _texts(path: Path, place: str, texts: Mapping[str, Any]) -> None:
    for name, text in texts.items():
        _is(path, f"{place}.{name}", text, (str,))


def _is(path: Path, place: str, value: Any, kinds: tuple[type, ...]) -> None:
    if type(value) not in kinds:
        expected = " or ".join("nothing" if kind is type(None) else kind.__name__ for kind in kinds)
        raise DamagedError(f"{path}: {place}: got {str(value)[:40]!r}, expected {expected}", CURE)


def _number(path: Path, place: str, value: Any, most: float = math.inf, least: float = 0.0) -> None:
    _is(path, place, value, (int, float, type(None)))
    if value is not None and not (0.0 if most == 1.0 else least) <= value <= most:
        raise DamagedError(f"{path}: {place}: got {value}, expected a number that a run can give", CURE)
