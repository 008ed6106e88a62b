"""A finished run as the pages read it: its manifest, rows, rounds and reconstructions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from safetensors.numpy import load_file

from leakbench.core.errors import InputError
from leakbench.core.leakage_points import LeakagePoint
from leakbench.storage.manifest import check_finished, check_of_run, check_shown
from leakbench.storage.rows_file import read_rows, rows_at
from leakbench.storage.store import read_manifest, without_pictures, written
from leakbench.storage.summary import Summary

__all__ = ["Arrays", "Finished", "read_finished"]

T = TypeVar("T")

Arrays: TypeAlias = Mapping[str, NDArray[np.floating]]


@dataclass(frozen=True)
class Finished:
    """One finished run.

    Args:
        arrays: `<tap>.round<r>.truth` and `.reconstruction`, (V, M, *s).
    """

    folder: Path
    manifest: dict[str, Any]
    rows: pd.DataFrame
    rounds: pd.DataFrame
    arrays: Arrays

    @cached_property
    def summary(self) -> Summary:
        """What the table shows."""
        return Summary.of(self.manifest["summary"])

    def points(self) -> dict[str, pd.DataFrame]:
        """Return {leakage point as the summary names it: its rows}."""
        points = {}
        for name in self.summary.taps:
            points[name] = rows_at(self.rows, LeakagePoint.of(name))
            if points[name].empty:
                raise InputError(f"{self.folder / 'rows.parquet'}: no row is of {name}, which the summary tells of")
        return points


def read_finished(folder: Path, redact: bool = False) -> Finished:
    """Return the finished run in a folder, where asked without its pictures.

    Raises InputError that names the file which is missing or cannot be read.
    """
    manifest = read_manifest(folder)
    check_of_run(folder / "manifest.json", manifest)
    check_finished(folder / "manifest.json", manifest)
    check_shown(folder / "manifest.json", manifest)
    for name in ("rows.parquet", "rounds.parquet", "reconstructions.safetensors"):
        written(folder, manifest, name)
    arrays = _read(folder / "reconstructions.safetensors", load_file)
    return Finished(
        folder,
        manifest,
        _read(folder / "rows.parquet", read_rows),
        _read(folder / "rounds.parquet", read_rows),
        without_pictures(arrays) if redact else arrays,
    )


def _read(path: Path, read: Callable[[Path], T]) -> T:
    try:
        return read(path)
    except InputError:
        raise
    except Exception as error:  # each format raises other errors, but the cause is always the file
        first = (str(error) or type(error).__name__).splitlines()[0]
        raise InputError(f"{path}: cannot be read ({first}); run the cell again") from None
