"""The folder in which a probe keeps what it heard: an earlier probe's files are replaced, all of them, and nobody else's is."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from leakbench.errors import InputError
from leakbench.own.arrays import ENDINGS
from leakbench.store import write_atomically

__all__ = ["save_heard"]

ALONE = ("truth.safetensors", "update.safetensors", "before.safetensors")

MARK = {"written_by": "leakbench.probe"}
"""In the metadata of each file, by which a later save knows it."""


def save_heard(folder: Path, files: Mapping[str, Mapping[str, Tensor]]) -> None:
    """Write {name of a file: {name: array}} as safetensors: `truth`, `update`, `before` and those in `example/`.

    Files of an earlier save are removed before the first is written, so that those of two are never side by side; other names are
    left alone. Raises InputError, before anything is written, for a file by one of these names that no probe wrote.
    """
    several = folder / "example"
    arrays = [p for p in several.iterdir() if p.suffix in ENDINGS] if several.is_dir() else []
    old = [path for path in (*(folder / name for name in ALONE), *sorted(arrays)) if os.path.lexists(path)]
    for path in old:
        if not _ours(path):
            raise InputError(f"save: {path} is not of a probe and is not replaced; move it away or give another folder")
    for path in old:
        path.unlink()
    for name, tensors in files.items():
        whole = save({n: t.detach().cpu().contiguous().clone() for n, t in tensors.items()}, MARK)
        write_atomically(folder / name, partial(_write, whole), private=True)


def _write(content: bytes, path: Path) -> None:
    path.write_bytes(content)


def _ours(path: Path) -> bool:
    try:
        with safe_open(path, framework="pt") as file:
            return (file.metadata() or {}).items() >= MARK.items()
    except (SafetensorError, OSError):
        return False
