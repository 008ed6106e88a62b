"""What the scripts in results/ and benchmarks/ share: wrong input is one line on stderr and exit code 2, and nothing is written."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import yaml

from leakbench.cell.request import Request
from leakbench.errors import InputError, nearest

__all__ = ["chosen", "existing", "numbers", "one_line"]


def one_line(main: Callable[[], None]) -> None:
    """Run a script; of wrong input, and of a file that cannot be read or written, say one line and exit with 2."""
    try:
        main()
    except InputError as error:
        said = str(error)
    except OSError as error:
        said = f"{error.filename2 or error.filename or 'file system'}: {error.strerror or error}"
    else:
        return
    sys.stderr.write(f"{Path(sys.argv[0]).name}: {' '.join(said.split())}\n")
    sys.exit(2)


def existing(what: str, path: Path | None) -> Path | None:
    """Return a folder that is there, or None for none; raises InputError for another."""
    if path is not None and not path.is_dir():
        raise InputError(f"{what}: no folder {str(path)!r}")
    return path


def chosen(names: Iterable[str], only: str) -> list[str]:
    """Return the names that hold the text `only`; raises InputError where none does."""
    known = list(names)
    found = [name for name in known if only in name]
    if not found:
        raise InputError(f"--only: no row's name holds {only!r}{nearest(only, known)}")
    return found


def numbers(words: Iterable[str]) -> dict[str, Any]:
    """Return {field of a `Request`: number} of words like `victims=20`; raises InputError for others."""
    kinds = {f.name: str(f.type).partition(" ")[0] for f in dataclasses.fields(Request)}
    known = [name for name, kind in kinds.items() if kind in ("int", "float")]
    found = {}
    for word in words:
        name, equals, text = word.partition("=")
        if not equals:
            raise InputError(f"--set: got {word!r}, expected NAME=VALUE, as victims=20")
        if name not in known:
            raise InputError(f"--set: {name!r} is no number of a cell{nearest(name, known)}")
        found[name] = _number(name, text, kinds[name])
    return found


def _number(name: str, text: str, kind: str) -> int | float:
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError:
        value = None
    if type(value) is not int and (kind == "int" or type(value) is not float):
        raise InputError(f"--set: {name}: got {text!r}, expected {'a whole number' if kind == 'int' else 'a number'}")
    return value
