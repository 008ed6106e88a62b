"""Check that a run wrote a manifest: the types of all fields that are read, and the checksum."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ValidationError

from leakbench.core.errors import DamagedError, InputError
from leakbench.core.hashes import content_hash
from leakbench.core.untrusted import is_inside, said
from leakbench.storage.summary import Amount, Names, Plain, Summary, misfit

__all__ = [
    "CURE",
    "FORMAT",
    "check_finished",
    "check_manifest",
    "check_of_run",
    "check_seal",
    "check_shown",
    "needed",
    "sealed",
]

CURE = "move the folder away to measure again"

FORMAT = 2
"""Version of a manifest, in its field `schema`."""

SHOWN = (
    *("hash", "command", "cell.dataset", "cell.defense", "cell.attack", "settings", "versions", "phases", "files"),
    *("summary.cell.defense", "summary.cell.attack", "summary.cell.dataset", "summary.accuracy", "summary.rounds"),
    *("summary.epsilon.valid", "summary.epsilon.claimed", "summary.epsilon.unit", "summary.epsilon.delta"),
    *("summary.taps", "summary.notes", "summary.claims", "summary.threat", "summary.protocol"),
)
"""Fields that a table and a page show of every run."""

SHOWN_OF_TAP = ("round", "batch", "victims", "failures", "candidates", "asr", "eta", "verdict", "seconds")
"""Fields that they show of each leakage point."""


def _inside(name: str) -> str:
    if not is_inside(name):
        raise ValueError(f"got {said(name)}, expected names of files in the folder")
    return name


class Manifest(BaseModel):
    """The fields of a manifest that are read."""

    hash: str = ""
    command: str = ""
    complete: bool = False
    cell: Names = Names()
    recipes: dict[str, Any] = {}
    settings: dict[str, Any] = {}
    versions: dict[str, str] = {}
    computed: list[dict[str, Plain]] = []
    observations: dict[str, str] = {}
    phases: dict[str, Amount] = {}
    files: dict[Annotated[str, AfterValidator(_inside)], str] = {}
    summary: Summary = Summary()


def check_manifest(path: Path, manifest: Mapping[str, Any]) -> None:
    """Raise DamagedError, with the file and the field, for a manifest that does not fit the model.

    Fields may be missing; readers check those that they need with `needed`.
    """
    try:
        found = Manifest.model_validate(manifest, strict=True)
    except ValidationError as error:
        raise DamagedError(f"{path}: {misfit(error, manifest)}", CURE) from None
    # An attack on an external update without the truth has no scores, and manifests with a kind do not belong to cells.
    if "taps" in found.summary.model_fields_set and not found.summary.taps and "kind" not in manifest:
        raise DamagedError(f"{path}: summary.taps: got none, expected one or more", CURE)


def sealed(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """Return a manifest with its format and its checksum, which reveals a changed figure."""
    content = {"schema": FORMAT, **manifest} | {"schema": FORMAT}
    content.pop("checksum", None)
    return {**content, "checksum": content_hash(content)}


def check_seal(path: Path, manifest: Mapping[str, Any]) -> None:
    """Raise DamagedError for a manifest that does not fit its checksum."""
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
                raise InputError(f"{path}: {field} is missing; {CURE}")
            at = at[name]


def check_of_run(path: Path, manifest: Mapping[str, Any]) -> None:
    """Raise InputError, with the file, for a manifest that is not of a run: it has a field `kind`."""
    if (kind := manifest.get("kind")) is not None:
        raise InputError(
            f"{path}: the folder of an {kind}, expected that of a run; use `leakbench report {path.parent}` to see it"
        )


def check_finished(path: Path, manifest: Mapping[str, Any]) -> None:
    """Raise InputError, with the file, for the manifest of a run that is not finished."""
    if "summary" not in manifest:
        raise InputError(f"{path}: has no summary; the run is not finished; run the same command again to resume")


def check_shown(path: Path, manifest: Mapping[str, Any]) -> None:
    """Raise InputError, with the file, for a missing field of a manifest that a table or a page shows."""
    of_taps = (f"summary.taps.{tap}.{name}" for tap in manifest["summary"].get("taps", ()) for name in SHOWN_OF_TAP)
    needed(path, manifest, *SHOWN, *of_taps)
