"""A run's folder: files that are whole or not there, a manifest that knows their checksums, one writer at a time.

manifest.json                 what was asked, what it resolved to, versions, seconds a phase, {file: sha256}, its own sha256
rows.parquet                  one row per example under attack and leakage point
rounds.parquet                one row per round of training
reconstructions.safetensors   the attacker's reconstructions and the truth
report.html                   all of it for a reader
audit.json                    the audit of its defense, where one was kept
parts/                        what a run that was cut short has finished; gone when it is whole
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import pandas as pd
from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor

from leakbench.atomic import TEMPORARY, write_atomically
from leakbench.errors import DamagedError, InputError
from leakbench.hashes import checksum, content_hash, tensor_hash
from leakbench.locks import alone, locked
from leakbench.manifest import FORMATS, check_finished, sealed
from leakbench.manifest_file import read_manifest, written
from leakbench.rows_file import read_rows, write_rows

__all__ = [
    "AFTER",
    "SCHEMA",
    "Run",
    "alone",
    "check_out",
    "checksum",
    "content_hash",
    "finished_run",
    "open_run",
    "read_manifest",
    "tensor_hash",
    "write_atomically",
    "written",
]

SCHEMA = 1
"""Part of what a cell is known by."""

AFTER = ("report.html", "audit.json")
"""Files that are made of a run that is whole."""

Say: TypeAlias = Callable[[str], None]


def _unsaid(line: str) -> None:
    pass


@dataclass
class Run:
    """A run's folder, open for writing by this process alone.

    Args:
        say: Told, in a line each, of files that are not as they were written and so are measured again.
    """

    folder: Path
    manifest: dict[str, Any]
    say: Say = field(default=_unsaid, repr=False)

    def has(self, name: str) -> bool:
        """Say whether a file is there and whole; one that is damaged is forgotten, so that it is measured again."""
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
        """Write one file atomically and enter its checksum into the manifest; one that cannot be entered is not there."""
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
        """Write a text and return its path; nothing is touched where just this text is there already."""
        path = self.folder / name
        if not (self.has(name) and path.read_bytes() == text.encode()):
            self.write(name, lambda temporary: temporary.write_text(text, encoding="utf-8"))
        return path

    def write_tensors(self, name: str, tensors: dict[str, Tensor]) -> None:
        """Write a .safetensors file."""
        whole = {key: t.detach().cpu().contiguous().clone() for key, t in tensors.items()}
        self.write(
            name, lambda path: path.write_bytes(save(whole))
        )  # Unlike save_file, fails on a full disk as all writing does.

    def read_tensors(self, name: str) -> dict[str, Tensor]:
        """Read a .safetensors file; raises InputError for one that is not as it was written."""
        with safe_open(written(self.folder, self.manifest, name), framework="pt") as file:
            return {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118

    def write_rows(self, name: str, rows: pd.DataFrame) -> None:
        """Write a .parquet file."""
        self.write(name, lambda path: write_rows(path, rows))

    def read_rows(self, name: str) -> pd.DataFrame:
        """Read a .parquet file; raises InputError for one that is not as it was written."""
        return read_rows(written(self.folder, self.manifest, name))

    def forget(self, prefix: str) -> None:
        """Remove every file whose name starts with `prefix`; a `prefix/` is a folder, which goes with all that is in it."""
        names = [name for name in self.manifest["files"] if name.startswith(prefix)]
        for name in names:
            self.manifest["files"].pop(name)
        self.save()
        for name in names:
            (self.folder / name).unlink(missing_ok=True)
        if prefix.endswith("/"):  # What a killed process wrote and did not enter into the manifest goes as well.
            shutil.rmtree(self.folder / prefix, ignore_errors=True)

    @contextmanager
    def timed(self, phase: str) -> Iterator[None]:
        """Add the wall time of what is done inside to a phase."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self.add_seconds(phase, time.perf_counter() - began)

    def add_seconds(self, phase: str, seconds: float) -> None:
        """Add wall time to a phase; it goes into the manifest with the next file."""
        phases = self.manifest["phases"]
        phases[phase] = round(phases.get(phase, 0.0) + seconds, 3)

    def save(self) -> None:
        """Write the manifest."""
        self.manifest = sealed(self.manifest)
        text = json.dumps(self.manifest, indent=1, ensure_ascii=False, allow_nan=False)
        write_atomically(
            self.folder / "manifest.json", lambda path: path.write_text(text + "\n", encoding="utf-8"), private=True
        )


@contextmanager
def open_run(folder: Path, identity: dict[str, Any], own: bool = False, say: Say = _unsaid) -> Iterator[Run]:
    """Open a run's folder for the cell `identity`, new or to go on; raises InputError for another cell's folder.

    Where nothing was finished, nothing is left behind.

    Args:
        own: The folder's name is this cell's alone, so that a manifest in it that is damaged or missing was this cell's, which is
            measured again; in any other folder raises DamagedError, or InputError.
        say: Told what is measured again.
    """
    _check_parts(folder)
    with locked(folder):
        if (folder / "parts").is_symlink():
            raise InputError(f"{folder / 'parts'}: is a link, expected a folder; give another --out")
        new = not (folder / "manifest.json").exists()
        if new:
            _sweep(folder)  # Who was killed before its manifest had a name left nothing else.
            left = _left(folder)
            if left and not own:
                raise _not_empty(folder)
            missing = f"{folder / 'manifest.json'}: is missing"
            run = _anew(folder, identity, missing, say) if left else _begun(folder, identity, say)
        else:
            run = _there(folder, say) if not own else _there_or_anew(folder, identity, say)
            _check_manifest(folder, run.manifest, identity["hash"])
            if not run.manifest["complete"]:  # Else the command that measured it stays.
                run.manifest["command"] = identity["command"]
                _goes_on(run, identity.get("computed", []))
            if run.manifest["complete"] and (folder / "parts").exists():
                run.forget("parts/")
        try:
            yield run
        finally:
            if new and not run.manifest["files"]:
                with suppress(OSError):  # A disk that has become read-only is what is to be told.
                    (folder / "manifest.json").unlink()
                    shutil.rmtree(folder / "parts", ignore_errors=True)


def check_out(folder: Path) -> None:
    """Raise InputError for a folder in which no run can begin, before anything is computed; `open_run` checks it again."""
    try:
        _check_parts(folder)
        is_file = folder.exists() and not folder.is_dir()
    except OSError as error:  # A name that is too long, or a folder that may not be read.
        raise InputError(f"out: {str(folder)!r}: {error.strerror}; give another --out") from None
    if is_file:
        raise InputError(f"out: {str(folder)!r} is a file, expected a folder; give another --out")
    if folder.is_dir() and not (folder / "manifest.json").exists() and _left(folder):
        raise _not_empty(folder)


def _check_parts(folder: Path) -> None:
    if folder.name == "parts" and (folder.parent / "manifest.json").exists():
        raise InputError(
            f"out: {str(folder)!r} is where the run in {str(folder.parent)!r} keeps its parts; give another --out"
        )


def _left(folder: Path) -> bool:
    """Whether a folder without a manifest has files other than a lock and the temporary files of a killed process."""
    return any(path.name != ".lock" and not TEMPORARY.fullmatch(path.name) for path in folder.iterdir())


def _not_empty(folder: Path) -> InputError:
    return InputError(f"out: {str(folder)!r} is not empty and holds no run; give another --out")


@contextmanager
def finished_run(folder: Path) -> Iterator[Run]:
    """Open the folder of a finished run to put a file into it; raises InputError where there is none, or another process writes."""
    check_finished(folder / "manifest.json", read_manifest(folder))  # Before the folder is touched.
    with locked(folder):
        run = _there(folder)
        check_finished(folder / "manifest.json", run.manifest)
        yield run


def _goes_on(run: Run, by: list[dict[str, Any]]) -> None:
    """Enter by what an unfinished run is gone on with, and say what of that is new: its rows are then of several."""
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
    """Begin a run: before any other file, so that a folder in which something of a run lies always has its manifest."""
    run = Run(folder, {**identity, "phases": {}, "files": {}, "complete": False}, say)
    run.save()
    return run


def _there_or_anew(folder: Path, identity: dict[str, Any], say: Say) -> Run:
    """Return the run of a folder; a new one where its manifest, without which no file can be trusted, is damaged."""
    try:
        return _there(folder, say)
    except DamagedError as error:
        return _anew(folder, identity, error.what, say)


def _anew(folder: Path, identity: dict[str, Any], what: str, say: Say) -> Run:
    """Begin a run where one lies of which nothing can be trusted.

    Args:
        what: Why.
    """
    say(f"{what}; the cell is measured again")
    for name in AFTER:
        (folder / name).unlink(missing_ok=True)
    shutil.rmtree(folder / "parts", ignore_errors=True)
    return _begun(folder, identity, say)


def _there(folder: Path, say: Say = _unsaid) -> Run:
    """Return the run of a folder that this process holds, without what a killed process left."""
    manifest = read_manifest(folder)
    _sweep(folder)
    if manifest["schema"] == FORMATS[0] and isinstance(manifest.get("files"), dict):
        for name in AFTER:  # Whose checksums the first format did not hold.
            if (folder / name).is_file():
                manifest["files"].setdefault(name, checksum(folder / name))
    return Run(folder, manifest, say)


def _sweep(folder: Path) -> None:
    """Remove the temporary files that a killed process left in a run's folder; keep all other files."""
    for place in (folder, folder / "parts"):
        for left in place.glob(".*.tmp"):
            if TEMPORARY.fullmatch(left.name):
                left.unlink(missing_ok=True)


def _check_manifest(folder: Path, manifest: dict[str, Any], wanted: str) -> None:
    kinds: dict[str, type] = {"hash": str, "files": dict, "phases": dict, "complete": bool}
    if manifest.get("complete") is True:
        kinds["summary"] = dict
    for name, kind in kinds.items():
        if not isinstance(manifest.get(name), kind):
            raise InputError(f"{folder / 'manifest.json'}: {name} is missing or damaged; move it away to measure again")
    if manifest["hash"] != wanted:
        hashes = f"{manifest['hash'][:12]}, not {wanted[:12]}"
        raise InputError(f"out: {str(folder)!r} holds another cell ({hashes}); give another --out")
