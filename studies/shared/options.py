"""Command-line options of the scripts, with the same meaning in all of them."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from leakbench.core.errors import InputError
from leakbench.core.scripts import existing
from leakbench.reproduce.choose import numbers

__all__ = ["FLAGS", "checked", "parser"]

FLAGS: dict[str, dict[str, Any]] = {
    "--data-dir": {"type": Path},
    "--runs": {"type": Path, "default": Path("runs")},
    "--only": {
        "default": "",
        "help": "rows whose name contains this text; only the row with exactly this name, if it exists",
    },
    "--page": {"action": "store_true"},
    "--set": {"nargs": "+", "action": "extend", "default": [], "metavar": "NAME=VALUE"},
    "--out": {"type": Path, "help": "folder of the files that are written; without it, that of the published results"},
}


def parser(said: str | None, *flags: str) -> argparse.ArgumentParser:
    """Return a parser of some of `FLAGS`, to which a script adds its own options. said: The description of the script."""
    asked = argparse.ArgumentParser(description=said, formatter_class=argparse.RawDescriptionHelpFormatter)
    for flag in flags:
        asked.add_argument(flag, **FLAGS[flag])
    return asked


def checked(asked: argparse.Namespace) -> argparse.Namespace:
    """Return the parsed options, with the changes of `--set` as `changed`.

    Raises:
        InputError: For a folder that does not exist, for `--out` that is not a folder, and for `--set` without `--out`.
    """
    if "out" in asked and asked.out is not None:
        if asked.out.exists() and not asked.out.is_dir():
            raise InputError(f"--out: {str(asked.out)!r} is not a folder")
        asked.out.mkdir(parents=True, exist_ok=True)
    existing("--data-dir", asked.data_dir)
    if "set" in asked:
        asked.changed = numbers(asked.set)
        if asked.changed and asked.out is None:
            raise InputError("--set: measures a trial, which would take the place of published rows; give --out FOLDER")
    return asked
