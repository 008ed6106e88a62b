"""A run's folder: complete files, a manifest with their checksums, one writer at a time.

manifest.json                 the request, its recipes and settings, versions, seconds per phase, {file: sha256}, its own sha256
rows.parquet                  one row per attacked example and leakage point
rounds.parquet                one row per round of training
reconstructions.safetensors   the attacker's reconstructions and the truth
answers.*.safetensors         of `leakbench attack`: the reconstructions of a leakage point, before they are scored
report.html                   the report for readers
audit.json                    the audit of its defense, if there is one
parts/                        the finished parts of an interrupted run; removed when the run is complete
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import pandas as pd
from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor

from leakbench.core.errors import DamagedError, InputError
from leakbench.core.hashes import checksum, content_hash, tensor_hash
from leakbench.storage.atomic import TEMPORARY, write_atomically, write_text
from leakbench.storage.locks import alone, locked
from leakbench.storage.manifest import check_finished, sealed
from leakbench.storage.manifest_file import (
    check_out,
    check_parts,
    files_left,
    not_empty,
    read_manifest,
    written,
)
from leakbench.storage.rows_file import read_rows, write_rows

__all__ = [
    "AFTER",
    "SCHEMA",
    "Run",
    "add_environment",
    "alone",
    "check_out",
    "checksum",
    "content_hash",
    "finished_run",
    "open_run",
    "read_manifest",
    "tensor_hash",
    "without_pictures",
    "write_atomically",
    "written",
]

SCHEMA = 1
"""Version in the identity of every cell."""

AFTER = ("report.html", "audit.json")
"""Files that are made from a complete run."""

Say: TypeAlias = Callable[[str], None]


def _unsaid(line: str) -> None:
    pass


@dataclass
class Run:
    """A run's folder, open for writing by only this process.

    Args:
        say: Called with one line for each file that is missing or changed, and so is measured again.
    """

    folder: Path
    manifest: dict[str, Any]
    say: Say = field(default=_unsaid, repr=False)

    def has(self, name: str) -> bool:
        """Return whether a file is complete; a damaged one is removed from the manifest, so that it is measured again."""
        path, known = self.folder / name, self.manifest["files"].get(name)
        if known is None:
            return False
        there = path.is_file()
        if there and checksum(path) == known:
            return True
        self.say(f"{path}: {'is not what the run wrote' if there else 'is missing'}; it is made again")
        self.manifest["files"].pop(name)
        return False

    def write(self, name: str, write: Callable[[Path], object]) -> None:
        """Write one file atomically and its checksum into the manifest; if the manifest cannot be written, the file is removed."""
        path = self.folder / name
        write_atomically(path, write, private=True)
        self.manifest["files"][name] = checksum(path)
        try:
            self.save()
        except OSError:
            self.manifest["files"].pop(name)
            with suppress(OSError):
                path.unlink()
            raise

    def write_text(self, name: str, text: str) -> Path:
        """Write a text and return its path; a file with the same text stays as it is."""
        path = self.folder / name
        if not (self.has(name) and path.read_bytes() == text.encode()):
            self.write(name, lambda temporary: temporary.write_text(text, encoding="utf-8"))
        return path

    def write_tensors(self, name: str, tensors: dict[str, Tensor]) -> None:
        """Write a .safetensors file."""
        whole = {key: t.detach().cpu().contiguous().clone() for key, t in tensors.items()}
        # Unlike save_file, write_bytes raises an OSError on a full disk.
        self.write(name, lambda path: path.write_bytes(save(whole)))

    def read_tensors(self, name: str) -> dict[str, Tensor]:
        """Read a .safetensors file; raises InputError for a missing or changed one."""
        with safe_open(written(self.folder, self.manifest, name), framework="pt") as file:
            return {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118

    def write_rows(self, name: str, rows: pd.DataFrame) -> None:
        """Write a .parquet file."""
        self.write(name, lambda path: write_rows(path, rows))

    def read_rows(self, name: str) -> pd.DataFrame:
        """Read a .parquet file; raises InputError for a missing or changed one."""
        return read_rows(written(self.folder, self.manifest, name))

    def forget(self, prefix: str) -> None:
        """Remove every file whose name starts with `prefix`; `prefix/` removes the folder with its whole content."""
        names = [name for name in self.manifest["files"] if name.startswith(prefix)]
        for name in names:
            self.manifest["files"].pop(name)
        self.save()
        for name in names:
            (self.folder / name).unlink(missing_ok=True)
        if prefix.endswith("/"):  # The folder may contain files of a killed process that are not in the manifest.
            shutil.rmtree(self.folder / prefix, ignore_errors=True)

    @contextmanager
    def timed(self, phase: str) -> Iterator[None]:
        """Add the wall time of the `with` block to a phase."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self.add_seconds(phase, time.perf_counter() - began)

    def add_seconds(self, phase: str, seconds: float) -> None:
        """Add wall time to a phase; the next write of the manifest includes it."""
        phases = self.manifest["phases"]
        phases[phase] = round(phases.get(phase, 0.0) + seconds, 3)

    def save(self) -> None:
        """Write the manifest."""
        self.manifest = sealed(self.manifest)
        text = json.dumps(self.manifest, indent=1, ensure_ascii=False, allow_nan=False)
        write_text(self.folder / "manifest.json", text + "\n", private=True)


@contextmanager
def open_run(folder: Path, identity: dict[str, Any], own: bool = False, say: Say = _unsaid) -> Iterator[Run]:
    """Open a run's folder for the cell `identity`, to start or resume the run.

    If no part was finished, the folder is removed at the end.

    Args:
        identity: The first content of the manifest.
        own: Whether the folder's name belongs to only this cell. A damaged or missing manifest in it was then this cell's, which is
            measured again.
        say: Called with one line for each file that is measured again.

    Raises:
        InputError: For the folder of another cell, or one that is not empty and has no run.
        DamagedError: For a damaged manifest, unless `own`.
    """
    check_parts(folder)
    with locked(folder):
        if (folder / "parts").is_symlink():
            raise InputError(f"{folder / 'parts'}: is a link, expected a folder; give another --out")
        new = not (folder / "manifest.json").exists()
        if new:
            _sweep(folder)  # A process that was killed before its first manifest left only temporary files.
            left = files_left(folder)
            if left and not own:
                raise not_empty(folder)
            missing = f"{folder / 'manifest.json'}: is missing"
            run = _anew(folder, identity, missing, say) if left else _begun(folder, identity, say)
        else:
            run = _there(folder, say) if not own else _there_or_anew(folder, identity, say)
            _check_manifest(folder, run.manifest, identity)
            if not run.manifest["complete"]:  # A complete run keeps the command that measured it.
                run.manifest["command"] = identity["command"]
                add_environment(run, identity.get("computed", []))
            if run.manifest["complete"] and (folder / "parts").exists():
                run.forget("parts/")
        try:
            yield run
        finally:
            if new and not run.manifest["files"]:
                with suppress(OSError):  # On a disk that has become read-only, the first error is the one to report.
                    (folder / "manifest.json").unlink()
                    shutil.rmtree(folder / "parts", ignore_errors=True)


@contextmanager
def finished_run(folder: Path) -> Iterator[Run]:
    """Open the folder of a finished run to add a file; raises InputError without one, or if another process writes to it."""
    check_finished(folder / "manifest.json", read_manifest(folder))  # Before the folder is touched.
    with locked(folder):
        run = _there(folder)
        check_finished(folder / "manifest.json", run.manifest)
        yield run


def add_environment(run: Run, by: list[dict[str, Any]]) -> None:
    """Add the environment of a resumed run to its manifest, and report the changes: its rows then come from several ones.

    Args:
        run: The open run.
        by: Environments in which it is continued, as `leakbench.cell.device.conditions` returns them; known ones are skipped.
    """
    had = run.manifest.setdefault("computed", [])
    for now in by:
        if now in had:
            continue
        known = had[-1] if had else {}
        other = [
            f"{name} {known[name]} before, {value} now"
            for name, value in now.items()
            if known.get(name, value) != value
        ]
        had.append(now)
        if other:
            run.say(f"{run.folder}: was started in a different environment: {'; '.join(other)}")


def _begun(folder: Path, identity: dict[str, Any], say: Say) -> Run:
    """Start a run with its manifest, so that a folder with files of a run always has one."""
    run = Run(folder, {**identity, "phases": {}, "files": {}, "complete": False}, say)
    run.save()
    return run


def _there_or_anew(folder: Path, identity: dict[str, Any], say: Say) -> Run:
    """Return the run of a folder, or a new one if its manifest is damaged, since its files can then not be checked."""
    try:
        return _there(folder, say)
    except DamagedError as error:
        return _anew(folder, identity, error.what, say)


def _anew(folder: Path, identity: dict[str, Any], what: str, say: Say) -> Run:
    """Start a run in the folder of a run whose files cannot be checked.

    Args:
        what: The reason, for the message.
    """
    say(f"{what}; the cell is measured again")
    for name in AFTER:
        (folder / name).unlink(missing_ok=True)
    shutil.rmtree(folder / "parts", ignore_errors=True)
    return _begun(folder, identity, say)


def _there(folder: Path, say: Say = _unsaid) -> Run:
    """Return the run of a folder that this process has locked, and remove temporary files of killed processes."""
    manifest = read_manifest(folder)
    _sweep(folder)
    return Run(folder, manifest, say)


def _sweep(folder: Path) -> None:
    """Remove the temporary files that a killed process left in a run's folder; keep all other files."""
    for place in (folder, folder / "parts"):
        for left in place.glob(".*.tmp"):
            if TEMPORARY.fullmatch(left.name):
                left.unlink(missing_ok=True)


def _check_manifest(folder: Path, manifest: dict[str, Any], identity: Mapping[str, Any]) -> None:
    kinds: dict[str, type] = {"hash": str, "files": dict, "phases": dict, "complete": bool}
    if manifest.get("complete") is True:
        kinds["summary"] = dict
    for name, kind in kinds.items():
        if not isinstance(manifest.get(name), kind):
            raise InputError(f"{folder / 'manifest.json'}: {name} is missing or damaged; move it away to measure again")
    if manifest["hash"] != (wanted := identity["hash"]):
        hashes = f"{manifest['hash'][:12]}, not {wanted[:12]}"
        # A run is of a cell; the other kinds of folders are of attacks.
        what = "attack" if identity.get("kind") else "cell"
        raise InputError(f"out: {str(folder)!r} contains another {what} ({hashes}); give another --out")


T = TypeVar("T")

SCORES = ("trajectory",)
"""Last word of the names of arrays without examples and reconstructions; all other arrays are removed."""


def without_pictures(arrays: Mapping[str, T]) -> dict[str, T]:
    """Return the arrays of {name: array} without examples and reconstructions."""
    return {name: array for name, array in arrays.items() if name.rpartition(".")[2] in SCORES}
