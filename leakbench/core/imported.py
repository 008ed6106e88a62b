"""Imports a user's own function by its name, `package.module:name`."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from importlib.machinery import BuiltinImporter, PathFinder
from typing import Any

from leakbench.core.errors import InputError

__all__ = ["check_importable", "failing_as", "import_function", "reason_of"]


def check_importable(field: str, path: str, folder: str) -> None:
    """Raise InputError for `package.module:name` whose package does not exist; nothing is imported."""
    module, colon, name = path.partition(":")
    if not (module and colon and name):
        raise InputError(f"{field}: got {path!r}, expected package.module:name")
    package = module.partition(".")[0]
    if (
        package in sys.modules
        or BuiltinImporter.find_spec(package)
        or PathFinder.find_spec(package, [folder, *sys.path])
    ):
        return
    raise InputError(f"{field}: {path!r} cannot be imported: ModuleNotFoundError: No module named {package!r}")


def import_function(field: str, path: str, folder: str) -> Callable[..., Any]:
    """Return the callable at `package.module:name`. Prints of the module go to stderr.

    Args:
        field: Name of the option, for messages.
        path: Name of the function.
        folder: Folder to import from, in addition to Python's path.

    Raises:
        InputError: If the path has another form, the import fails, or the object is not callable.
    """
    check_importable(field, path, folder)
    module, _, name = path.partition(":")
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        with redirect_stdout(sys.stderr):
            function: Any = importlib.import_module(module)
        for word in name.split("."):
            function = getattr(function, word)
    except (Exception, SystemExit) as error:
        raise InputError(f"{field}: {path!r} cannot be imported: {reason_of(error)}") from None
    if not callable(function):
        raise InputError(f"{field}: {path!r} is of type {type(function).__name__}, expected a function")
    return function  # type: ignore[no-any-return]


def reason_of(error: BaseException) -> str:
    """Return an error's type and message; only the type if the message raises an error."""
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:
        return type(error).__name__


@contextmanager
def failing_as(message: str) -> Iterator[None]:
    """Raise InputError with a message and the reason in place of any error of a user's code; it may fail in any way."""
    try:
        yield
    except InputError:
        raise
    except (Exception, SystemExit) as error:
        raise InputError(f"{message}: {reason_of(error)}") from None
