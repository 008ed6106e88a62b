"""All malformed inputs, by kind."""

from __future__ import annotations

from collections.abc import Mapping

from tests.bad import (
    callables,
    command_line,
    face_folders,
    grids,
    picture_files,
    recipes,
    records,
    run_folders,
    safetensors_files,
    sealed_folders,
    tables_csv,
)
from tests.bad.case import Case

__all__ = ["KINDS"]

KINDS: Mapping[str, tuple[Case, ...]] = {
    "command line": command_line.CASES,
    "recipes": recipes.CASES,
    "grids": grids.CASES,
    "baselines and cards": records.CASES,
    "run folders": run_folders.CASES,
    "run folders behind right checksums": sealed_folders.CASES,
    "idx and CIFAR files": picture_files.CASES,
    "folders of faces": face_folders.CASES,
    "CSVs": tables_csv.CASES,
    "safetensors and npz": safetensors_files.CASES,
    "callables": callables.CASES,
}
