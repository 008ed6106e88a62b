"""The audit of a run's defense: its file in the run folder, or the command that makes it."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from leakbench.auditing.verdict import Audit
from leakbench.core.errors import InputError
from leakbench.core.request import FederationFields
from leakbench.core.typed import check_fields
from leakbench.core.untrusted import bounded_text, without_controls
from leakbench.storage.manifest import check_of_run, needed
from leakbench.storage.store import finished_run, written

__all__ = ["AUDIT", "AUDITED_OPTIONS", "audit_command", "audit_of", "check_audited", "keep_audit"]

AUDIT = "audit.json"
"""The file of an audit in a run's folder; it names the cell that it belongs to."""

LONGEST = 1_000_000
"""Bytes of an audit; they take about 1,000."""

AUDITED_OPTIONS = tuple(
    f"--{name.replace('_', '-')}" for name in ("defense", *FederationFields.__annotations__, "data_dir")
)
"""Options of `leakbench run` that `leakbench audit` has too: those of the federation."""


def check_audited(folder: Path, manifest: Mapping[str, Any], audited: Mapping[str, Any]) -> None:
    """Raise InputError where the run in a folder has another defense or federation than is audited.

    Args:
        manifest: The run's.
        audited: {`defense`: its recipe, `dataset`: its name, `federation`: its settings}, described.
    """
    check_of_run(folder / "manifest.json", manifest)
    needed(folder / "manifest.json", manifest, "recipes.defense", "cell.dataset", "settings.federation")
    theirs = {
        "defense": manifest["recipes"]["defense"],
        "dataset": manifest["cell"]["dataset"],
        "federation": manifest["settings"]["federation"],
    }
    for what, said in theirs.items():
        if json.loads(json.dumps(audited[what])) != said:
            raise InputError(
                f"into: the run in {str(folder)!r} has another {what} than is audited; give the options of that run"
            )


def keep_audit(folder: Path, manifest: Mapping[str, Any], found: Audit) -> Path:
    """Write an audit into the folder of the finished run that it is of, and return its path."""
    with finished_run(folder) as run:
        return run.write_text(AUDIT, json.dumps({"hash": manifest["hash"], **found.as_dict()}, indent=1) + "\n")


def audit_of(folder: Path, manifest: Mapping[str, Any]) -> Audit | None:
    """Return the audit in a run's folder; None without one. Raises InputError for one that is damaged or of another cell."""
    path = folder / AUDIT
    if AUDIT in manifest.get("files", {}):
        written(folder, manifest, AUDIT, "audit again")
    elif not path.is_file():
        return None
    else:
        raise InputError(f"{path}: is not an audit of this run; remove it and audit again")
    try:
        text = bounded_text(path, LONGEST)
        kept = without_controls(json.loads(text), text)
        belongs = str(kept.pop("hash"))
        check_fields(Audit, kept, "an audit", whole=True)
        found = Audit(**kept)
    except InputError as error:
        raise InputError(f"{path}: {error}; remove it and audit again") from None
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise InputError(f"{path}: is not an audit that this version can read; remove it and audit again") from None
    if belongs != manifest["hash"]:
        raise InputError(f"{path}: is of another cell ({belongs[:12]}); remove it and audit again")
    return found


def audit_command(manifest: Mapping[str, Any]) -> str:
    """Return the command that audits the defense of a run and keeps the result for its page."""
    try:
        words = shlex.split(manifest["command"])
    except ValueError:
        words = []
    kept: list[str] = []
    if words[:2] == ["leakbench", "run"]:
        for option, value in zip(words, [*words[1:], ""], strict=True):
            name, equals, _ = option.partition("=")
            if name in AUDITED_OPTIONS:
                kept += [option] if equals else [option, value]
    else:  # A cell of a table, say, whose options stand nowhere.
        cell = manifest["cell"] if "cell" in manifest else manifest["summary"]["cell"]
        kept = ["--defense", cell["defense"].partition(" (")[0], "--dataset", cell["dataset"]]
    return shlex.join(["leakbench", "audit", *kept, "--into"]) + " FOLDER"
