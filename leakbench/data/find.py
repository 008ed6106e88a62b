"""From a name to checked data: found on the disk, or fetched from the official place."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

from leakbench.data.attributes import attributes_of
from leakbench.data.cache import Cache, Warn, to_stderr, user_cache
from leakbench.data.dataset import Dataset
from leakbench.data.fetch import Progress, fetch_origin
from leakbench.data.formats import Format
from leakbench.data.recipe import DatasetRecipe, Origin
from leakbench.errors import AbsentError, InputError
from leakbench.recipe import names, resolve

__all__ = ["Load", "find_folder", "load_dataset", "without_examples"]

Load: TypeAlias = Callable[..., tuple[str, DatasetRecipe, Dataset]]
"""Reads a data set as `load_dataset` does: (name or path, data folder, progress=...) -> (name, recipe, data)."""


def load_dataset(
    name_or_path: str,
    data_dir: Path | None = None,
    offline: bool = False,
    progress: Progress | None = None,
    warn: Warn = to_stderr,
) -> tuple[str, DatasetRecipe, Dataset]:
    """Return (name, recipe, data) for a data set of the catalog or a user's own `.yaml` file.

    The files are looked for in `data_dir`, $LEAKBENCH_DATA and the user's cache folder, in this order, and then, unless
    `offline`, fetched into the latter. No data folder is written to.

    Args:
        progress: Told (file, bytes so far, bytes in all or None).
        warn: Told where decoded pictures cannot be kept. Raises InputError, one line, for whatever is missing or wrong.
    """
    name, recipe = resolve("datasets", DatasetRecipe, name_or_path)
    folder = None
    if recipe.origin is not None:
        folder = find_folder(recipe.origin, data_dir)
        if folder is None or (not offline and _is_being_fetched(recipe.format, folder)):
            with _explained(name, recipe.origin, data_dir):
                folder = _fetched(recipe.format, recipe.origin, offline, progress)
    home = user_cache()
    data = recipe.format(folder, Cache(home / "decoded" if home else None, warn))
    data.check(name)
    data = dataclasses.replace(data, name=name)
    if recipe.sizes is not None:
        recipe.sizes.check(data)
    attributes_of(data, recipe.sensitive)
    return name, recipe, data


def without_examples(
    name_or_path: str, data_dir: Path | None = None, progress: Any = None, load: Load = load_dataset
) -> tuple[str, DatasetRecipe, Dataset]:
    """Return (name, recipe, data without examples) from the sizes that the recipe records.

    A user's recipe that records no sizes has its data loaded by `load`; the examples are then there.
    Raises InputError for an unknown name, and for data that are missing or wrong where they are loaded.
    """
    name, recipe = resolve("datasets", DatasetRecipe, name_or_path)
    if recipe.sizes is None:
        return load(name_or_path, data_dir, progress=progress)
    return name, recipe, recipe.sizes.without_examples(name)


def find_folder(origin: Origin, data_dir: Path | None) -> Path | None:
    """Return the first folder that holds a file of the set; raises InputError for a folder that cannot be read."""
    for _, root in _roots(data_dir):
        for candidate in origin.candidates:
            folder = root / candidate
            try:
                if folder.is_dir() and any(_there(folder, origin.marker)):
                    return folder
            except OSError as error:
                raise InputError(f"{error.filename or folder}: cannot be read: {error.strerror}") from None
    return None


def _there(folder: Path, marker: str) -> Iterator[Path]:
    """Yield what matches `marker` in a folder; unlike glob alone, raises OSError where the folder cannot be listed."""
    next(folder.iterdir(), None)
    yield from folder.glob(marker)


def _roots(data_dir: Path | None) -> Iterator[tuple[str, Path]]:
    """Yield (how it was named, data folder), in the order in which they are searched."""
    chosen = os.environ.get("LEAKBENCH_DATA", "")
    for told, root in (("--data-dir", data_dir), ("$LEAKBENCH_DATA", Path(chosen) if chosen else None)):
        if root is not None:
            if not root.is_dir():
                raise InputError(f"{told}: no folder {str(root)!r}; give the folder that holds the data sets")
            yield told, root
    home = user_cache()
    if home is not None:
        yield "the user's cache", home / "data"


def _fetched(form: Format, origin: Origin, offline: bool, progress: Progress | None) -> Path:
    """Fetch the set into the user's cache."""
    home = user_cache()
    if offline:
        raise InputError("offline, so not fetched")
    if home is None:
        raise InputError("no home folder to fetch it into (set XDG_CACHE_HOME)")
    return fetch_origin(form, origin, home / "data", progress)


def _is_being_fetched(form: Format, folder: Path) -> bool:
    """Say whether a set in the user's cache lacks files, as while another process brings them."""
    home = user_cache()
    files = getattr(form, "files", ())  # Of a set that comes as an archive all are there at once.
    return bool(home and folder.is_relative_to(home / "data")) and not all((folder / f.file).exists() for f in files)


@contextmanager
def _explained(name: str, origin: Origin, data_dir: Path | None) -> Iterator[None]:
    """Add to the reason why a set could not be fetched where it was looked for, and what can be done."""
    try:
        yield
    except InputError as problem:
        looked = ", ".join(f"{told} ({root})" for told, root in _roots(data_dir)) or "any folder (no home is known)"
        embedded = [n for n in names("datasets") if resolve("datasets", DatasetRecipe, n)[1].origin is None]
        fetch = (
            f", or get it with `leakbench data fetch {name}` or from {origin.mirrors[0]}{origin.archive}"
            if origin.mirrors
            else ""
        )
        raise AbsentError(
            f"dataset {name!r}: not in {looked}; {problem}; name the folder that holds it with --data-dir or in"
            f" LEAKBENCH_DATA{fetch}; these come with leakbench: {', '.join(embedded)}"
        ) from None
