"""A run's folder: files that are whole or not there, a manifest that knows their checksums, one writer at a time.

manifest.json                 what was asked, what it resolved to, versions, seconds a phase, {file: sha256}
rows.parquet                  one row per example under attack and leakage point
rounds.parquet                one row per round of training
reconstructions.safetensors   what the attacker answered, beside the truth
report.html                   all of it for a reader
parts/                        what a run that was cut short has finished; gone when it is whole
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor

from leakbench.errors import BusyError, InputError
from leakbench.manifest import check_manifest

__all__ = [
    "SCHEMA",
    "Run",
    "alone",
    "checksum",
    "content_hash",
    "open_run",
    "read_manifest",
    "tensor_hash",
    "write_atomically",
    "written",
]

SCHEMA = 1


def content_hash(value: Any) -> str:
    """Return the sha256 of plain data as canonical JSON: the identity of a cell."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def tensor_hash(tensors: Mapping[str, Tensor]) -> str:
    """Return the sha256 of named tensors: their names, types, shapes and bytes, whatever their order."""
    digest = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        flat = tensor.detach().cpu().contiguous().reshape(-1)
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)} ".encode())
        digest.update(flat.view(torch.uint8).numpy().data)
    return digest.hexdigest()


def checksum(path: Path) -> str:
    """Return the sha256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def written(folder: Path, manifest: dict[str, Any], name: str) -> Path:
    """Return the path of a file of a run; raises InputError where it is there but not what the run wrote."""
    path = folder / name
    if path.is_file() and checksum(path) != manifest["files"].get(name):
        raise InputError(f"{path}: is not what the run wrote; run the cell again to measure it anew")
    return path


def write_atomically(path: Path, write: Callable[[Path], object]) -> None:
    """Let `write` fill a temporary file beside `path`, then put it in place: after a crash the old file or the new one is there.

    An OSError names `path`, whatever was being written when it came.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
    os.close(handle)
    temporary = Path(name)
    try:
        write(temporary)
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        temporary.chmod(0o644)
        temporary.replace(path)
    except OSError as error:
        if (
            error.filename in (None, name) and error.filename2 is None
        ):  # A disk that is full does not say for which file.
            error.filename = str(path)
        raise
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Hold a folder, making it where it is not, while a file in it is read and written again; whoever else does so waits.

    The folder itself is locked, so that nothing is left behind.  Not for what takes long, see `open_run`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def read_manifest(folder: Path) -> dict[str, Any]:
    """Return the manifest of a run's folder; raises InputError where there is none that this version can read."""
    path = folder / "manifest.json"
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"run: no manifest.json in {str(folder)!r}; give the folder of a run") from None
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{path}: cannot be read ({error}); move it away to measure again") from None
    if not isinstance(manifest, dict) or manifest.get("schema") != SCHEMA:
        found = manifest.get("schema") if isinstance(manifest, dict) else type(manifest).__name__
        raise InputError(
            f"{path}: schema {found!r}, this version reads {SCHEMA}; move the folder away to measure again"
        )
    check_manifest(path, manifest)
    return manifest


@dataclass
class Run:
    """A run's folder, open for writing by this process alone."""

    folder: Path
    manifest: dict[str, Any]

    def has(self, name: str) -> bool:
        """Say whether a file is there and whole; one that is damaged is forgotten, so that it is measured again."""
        path, known = self.folder / name, self.manifest["files"].get(name)
        if known is None:
            return False
        if path.is_file() and checksum(path) == known:
            return True
        self.manifest["files"].pop(name)
        return False

    def write(self, name: str, write: Callable[[Path], object]) -> None:
        """Write one file atomically and enter its checksum into the manifest."""
        write_atomically(self.folder / name, write)
        self.manifest["files"][name] = checksum(self.folder / name)
        self.save()

    def write_tensors(self, name: str, tensors: dict[str, Tensor]) -> None:
        """Write a .safetensors file."""
        whole = {key: t.detach().cpu().contiguous().clone() for key, t in tensors.items()}
        self.write(
            name, lambda path: path.write_bytes(save(whole))
        )  # Unlike save_file, fails on a full disk as all writing does.

    def read_tensors(self, name: str) -> dict[str, Tensor]:
        """Read a .safetensors file."""
        with safe_open(self.folder / name, framework="pt") as file:
            return {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118

    def write_rows(self, name: str, rows: pd.DataFrame) -> None:
        """Write a .parquet file."""
        self.write(name, lambda path: rows.to_parquet(path, index=False))

    def read_rows(self, name: str) -> pd.DataFrame:
        """Read a .parquet file."""
        return pd.read_parquet(self.folder / name)

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
        text = json.dumps(self.manifest, indent=1, ensure_ascii=False, allow_nan=False)
        write_atomically(self.folder / "manifest.json", lambda path: path.write_text(text + "\n", encoding="utf-8"))


@contextmanager
def open_run(folder: Path, identity: dict[str, Any]) -> Iterator[Run]:
    """Open a run's folder for the cell `identity`, new or to go on; raises InputError for another cell's folder.

    Where nothing was finished, nothing is left behind.
    """
    with _locked(folder):
        new = not (folder / "manifest.json").exists()
        if new:
            if any(p.name != ".lock" for p in folder.iterdir()):
                raise InputError(f"out: {str(folder)!r} is not empty and holds no run; give another --out")
            run = Run(folder, {"schema": SCHEMA, **identity, "phases": {}, "files": {}, "complete": False})
            run.save()  # Before any other file: a folder in which something of a run lies always has its manifest.
        else:
            manifest = read_manifest(folder)
            _check_manifest(folder, manifest, identity["hash"])
            _sweep(folder)
            run = Run(folder, {**manifest, "command": identity["command"]})
            if manifest["complete"] and (folder / "parts").exists():
                run.forget("parts/")
        try:
            yield run
        finally:
            if new and not run.manifest["files"]:
                run.forget("parts/")
                (folder / "manifest.json").unlink()


def _sweep(folder: Path) -> None:
    """Remove the temporary files that a killed process left in a run's folder; whatever else lies there is not ours."""
    for place in (folder, folder / "parts"):
        for ending in ("json", "parquet", "safetensors", "html"):
            for left in place.glob(f".*.{ending}.*.tmp"):
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


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold a folder for this process alone, making it where it is not; what holds no run at the end is as it was before."""
    path = folder / ".lock"
    try:
        str(folder).encode()
        missing = [p for p in (folder, *folder.parents) if not p.exists()]
        fresh = not path.exists()
        folder.mkdir(parents=True, exist_ok=True)
        lock = path.open("a")
    except ValueError as error:
        raise InputError(f"out: {str(folder)!r} is no name for a folder: {error}; give another --out") from None
    except OSError as error:
        raise InputError(
            f"out: cannot write to {str(folder)!r}: {error.strerror}; choose another folder (of a run: --out)"
        ) from None
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            held = os.path.samestat(os.fstat(lock.fileno()), path.stat())  # Else its holder has just removed it.
        except OSError:
            held = False
        if not held:
            raise BusyError(f"out: another leakbench is writing to {str(folder)!r}; wait for it or give another --out")
        try:
            yield
        finally:
            if fresh and not (folder / "manifest.json").exists():
                path.unlink()
                with suppress(OSError):  # Somebody else has begun to use it.
                    for made in missing:
                        made.rmdir()
