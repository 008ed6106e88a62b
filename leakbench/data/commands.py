"""What `leakbench data` does: list, fetch, verify; the command line prints what these return."""

from __future__ import annotations

from pathlib import Path
from typing import TypeAlias

from leakbench.data.cache import user_cache
from leakbench.data.fetch import Progress, fetch_origin
from leakbench.data.find import find_folder
from leakbench.data.recipe import DatasetRecipe
from leakbench.errors import InputError
from leakbench.recipe import names, resolve

__all__ = ["fetch_dataset", "list_datasets", "verify_dataset"]

Row: TypeAlias = dict[str, str | float | bool]


def list_datasets(data_dir: Path | None = None) -> list[Row]:
    """Return one row a data set of the catalog: name, title, license, state, megabytes.

    state: `embedded`, `found at <folder>` (whose content is not checked here) or `absent`.  megabytes: what is to be
    fetched, 0 where the set is embedded.  Raises InputError for a data folder that is not there.
    """
    rows: list[Row] = []
    for name in names("datasets"):
        _, recipe = resolve("datasets", DatasetRecipe, name)
        state, size = "embedded", 0.0
        if recipe.origin is not None:
            folder = find_folder(recipe.origin, data_dir)
            state, size = f"found at {folder}" if folder else "absent", recipe.origin.megabytes
        rows.append({"name": name, "title": recipe.title, "license": recipe.license, "state": state, "megabytes": size})
    return rows


def fetch_dataset(name: str, data_dir: Path | None = None, progress: Progress | None = None) -> Path | None:
    """Fetch a data set into `data_dir`, by default the user's cache, unless a right copy is there; return its folder.

    None for an embedded set. Raises InputError, one line, where it cannot be had or written.
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


def verify_dataset(name: str, data_dir: Path | None = None) -> list[Row]:
    """Return one row a file of the set: file, expected, got (empty where it is missing), ok.

    Raises InputError where nothing of the set is found.
    """
    name, recipe = resolve("datasets", DatasetRecipe, name)
    folder = None
    if recipe.origin is not None:
        folder = find_folder(recipe.origin, data_dir)
        if folder is None:
            raise InputError(f"dataset {name!r}: not found; fetch it with `leakbench data fetch {name}`")
    checks = recipe.format.check(folder)
    return [{"file": c.file, "expected": " or ".join(c.expected), "got": c.got, "ok": c.ok} for c in checks]
