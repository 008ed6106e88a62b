"""Load a data set by name: from a data folder, or from its official location."""

from __future__ import annotations

import dataclasses
import os
import shlex
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

from leakbench.core.errors import AbsentError, InputError
from leakbench.core.recipe import names, resolve
from leakbench.data.attributes import attributes_of
from leakbench.data.cache import Cache, Warn, to_stderr, user_cache
from leakbench.data.dataset import Dataset
from leakbench.data.fetch import Progress, fetch_origin
from leakbench.data.formats import Format, ReadsAnySize
from leakbench.data.recipe import DatasetRecipe, Origin
from leakbench.data.resize import resized
from leakbench.data.sizes import Sizes
from leakbench.data.targets import with_label_head

__all__ = ["Load", "find_folder", "load_dataset", "without_examples"]

Load: TypeAlias = Callable[..., tuple[str, DatasetRecipe, Dataset]]
"""Reads a data set as `load_dataset` does: (name or path, data folder, progress=...) -> (name, recipe, data)."""


def load_dataset(
    name_or_path: str,
    data_dir: Path | None = None,
    offline: bool = False,
    progress: Progress | None = None,
    warn: Warn = to_stderr,
    size: int | None = None,
) -> tuple[str, DatasetRecipe, Dataset]:
    """Return (name, recipe, data) for a data set of the catalog or a user's own `.yaml` file.

    The function searches `data_dir`, $LEAKBENCH_DATA and the user's cache folder, in this order, and unless `offline` it fetches a
    missing set into the cache folder. It does not write into a data folder.

    Args:
        progress: Called with (file, bytes so far, total bytes or None).
        warn: Called with a message if decoded pictures cannot be cached, or a class has a single training sentence.
        size: Height and width of the pictures; None for those of the recipe. A format that `ReadsAnySize` reads this size from its
            files, the pictures of others are resized.

    Raises:
        InputError: If the set or a part of it is missing or wrong.
    """
    name, recipe = resolve("datasets", DatasetRecipe, name_or_path)
    folder = None
    if recipe.origin is not None:
        folder = find_folder(recipe.origin, data_dir)
        if folder is None or (not offline and _is_being_fetched(recipe.format, folder)):
            with _explained(name_or_path, recipe, data_dir):
                folder = _fetched(recipe.format, recipe.origin, offline, progress)
    home = user_cache()
    form, sizes = at_size(recipe, size)
    data = form(folder, Cache(home / "decoded" if home else None, warn))
    data.check(name)
    data = dataclasses.replace(data, name=name, private_preparation=recipe.preparations)
    if data.train_targets.dim() == 2:
        data = with_label_head(data)
    if sizes is not None:
        sizes.check(data)
    attributes_of(data, recipe.sensitive)
    return name, recipe, data if size is None else resized(data, size)


def at_size(recipe: DatasetRecipe, size: int | None) -> tuple[Format, Sizes | None]:
    """Return a data set's format and recorded sizes, at another size if the format can read it.

    Raises:
        InputError: For a size that the files do not have.
    """
    form, sizes = recipe.format, recipe.sizes
    if size is None or not isinstance(form, ReadsAnySize):
        return form, sizes
    if sizes is not None:
        sizes = dataclasses.replace(sizes, shape=(sizes.shape[0], size, size))
    return form.at(size), sizes


def without_examples(
    name_or_path: str,
    data_dir: Path | None = None,
    progress: Any = None,
    load: Load = load_dataset,
    size: int | None = None,
) -> tuple[str, DatasetRecipe, Dataset]:
    """Return (name, recipe, data without examples) from the sizes in the recipe.

    For a recipe without sizes, `load` loads the data with its examples.

    Raises:
        InputError: For an unknown name, or as `load` does.
    """
    name, recipe = resolve("datasets", DatasetRecipe, name_or_path)
    _, sizes = at_size(recipe, size)
    if sizes is None:
        return load(name_or_path, data_dir, progress=progress, size=size)
    data = dataclasses.replace(sizes.without_examples(name), private_preparation=recipe.preparations)
    return name, recipe, data if size is None else resized(data, size)


def find_folder(origin: Origin, data_dir: Path | None) -> Path | None:
    """Return the first folder with a file of the set, None without one; raises InputError for a folder that cannot be read."""
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
    """Yield the paths in a folder that match `marker`; unlike glob, raise OSError if the folder cannot be listed."""
    next(folder.iterdir(), None)
    yield from folder.glob(marker)


def _roots(data_dir: Path | None) -> Iterator[tuple[str, Path]]:
    """Yield (source, data folder) in the order of the search."""
    chosen = os.environ.get("LEAKBENCH_DATA", "")
    for source, root in (("--data-dir", data_dir), ("$LEAKBENCH_DATA", Path(chosen) if chosen else None)):
        if root is not None:
            if not root.is_dir():
                raise InputError(f"{source}: no folder {str(root)!r}; give the folder that holds the data sets")
            yield source, root
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
    """Return whether a set in the user's cache lacks files, as while another process fetches them."""
    home = user_cache()
    files = getattr(form, "files", ())  # A set from an archive appears as a whole.
    return bool(home and folder.is_relative_to(home / "data")) and not all((folder / f.file).exists() for f in files)


@contextmanager
def _explained(name_or_path: str, recipe: DatasetRecipe, data_dir: Path | None) -> Iterator[None]:
    """Extend the reason why a set was not fetched by the searched folders and the possible remedies."""
    try:
        yield
    except InputError as problem:
        searched = (
            ", ".join(f"{source} ({root})" for source, root in _roots(data_dir)) or "any folder (no home is known)"
        )
        embedded = [n for n in names("datasets") if resolve("datasets", DatasetRecipe, n)[1].origin is None]
        origin = recipe.origin
        fetch = f"; get its files from {recipe.page}" if recipe.page else ""
        if origin is not None and origin.mirrors:
            command = f"leakbench data fetch {shlex.quote(name_or_path)}"
            fetch = f", or get it with `{command}` or from {origin.mirrors[0]}{origin.archive}"
        raise AbsentError(
            f"dataset {name_or_path!r}: not in {searched}; {problem}; name the folder that holds it with --data-dir or in"
            f" LEAKBENCH_DATA{fetch}; these come with leakbench: {', '.join(embedded)}"
        ) from None
