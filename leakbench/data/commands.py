"""The functions of `leakbench data`: list, fetch and verify. The command line prints their results."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TypeAlias

from leakbench.core.errors import InputError
from leakbench.core.recipe import names, resolve
from leakbench.data.cache import user_cache
from leakbench.data.fetch import Progress, fetch_origin
from leakbench.data.find import find_folder
from leakbench.data.recipe import DatasetRecipe

__all__ = ["fetch_dataset", "list_datasets", "verify_dataset"]

Row: TypeAlias = dict[str, str | float | bool | None]


def list_datasets(data_dir: Path | None = None) -> list[Row]:
    """Return one row for each data set of the catalog.

    Returns:
        Rows {name, title, license, state, megabytes}. The state is `embedded`, `found at <folder>` (without a check of its content)
        or `absent`. The size is that of the download, 0 for an embedded set and for one that is not downloaded.

    Raises:
        InputError: For a data folder that does not exist.
    """
    rows: list[Row] = []
    for name in names("datasets"):
        _, recipe = resolve("datasets", DatasetRecipe, name)
        state, size = "embedded", 0.0
        if recipe.origin is not None:
            folder = find_folder(recipe.origin, data_dir)
            state, size = f"found at {folder}" if folder else "absent", recipe.origin.megabytes or 0.0
        rows.append({"name": name, "title": recipe.title, "license": recipe.license, "state": state, "megabytes": size})
    return rows


def fetch_dataset(name: str, data_dir: Path | None = None, progress: Progress | None = None) -> Path | None:
    """Fetch a data set unless a correct copy exists, and return its folder (None for an embedded set).

    Args:
        name: Name in the catalog, or a path to a recipe.
        data_dir: Data folder; None for the user's cache.
        progress: Called during the download.

    Raises:
        InputError: If the set cannot be fetched or written.
    """
    _, recipe = resolve("datasets", DatasetRecipe, name)
    if recipe.origin is None:
        return None
    home = user_cache()
    root = data_dir if data_dir is not None else home / "data" if home else None
    if root is None:
        raise InputError("data: no home folder to fetch into; give --data-dir or set XDG_CACHE_HOME")
    try:
        root.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{root}: cannot be made: {error.strerror}") from None
    folder = find_folder(recipe.origin, root)
    if folder and folder.is_relative_to(root) and all(c.ok for c in recipe.format.check(folder)):
        return folder
    return fetch_origin(recipe.format, recipe.origin, root, progress)


def verify_dataset(name_or_path: str, data_dir: Path | None = None) -> list[Row]:
    """Compare the files of a data set with their checksums.

    Args:
        name_or_path: Name in the catalog, or a path to a recipe.
        data_dir: Data folder; None for the usual ones.

    Returns:
        Rows {file, expected, got, ok}, one for each file; `got` is empty for a missing file. Where the recipe has no checksum,
        `expected` is empty and `ok` is None.

    Raises:
        InputError: If no folder has files of the set.
    """
    _, recipe = resolve("datasets", DatasetRecipe, name_or_path)
    folder = None
    if recipe.origin is not None:
        folder = find_folder(recipe.origin, data_dir)
        if folder is None:
            raise InputError(
                f"dataset {name_or_path!r}: not found; fetch it with `leakbench data fetch {shlex.quote(name_or_path)}`"
            )
    checks = recipe.format.check(folder)
    return [
        {"file": c.file, "expected": " or ".join(c.expected), "got": c.got, "ok": c.ok if c.expected else None}
        for c in checks
    ]
