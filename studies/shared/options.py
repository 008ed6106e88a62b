"""What a script may be asked for on its command line: flags of one meaning in all of them."""

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
        "help": "rows whose name contains this text; the one that has this very name, where there is one",
    },
    "--page": {"action": "store_true"},
    "--set": {"nargs": "+", "action": "extend", "default": [], "metavar": "NAME=VALUE"},
    "--out": {"type": Path, "help": "where what is written goes; beside this script where it is not given"},
}


def parser(said: str | None, *flags: str) -> argparse.ArgumentParser:
    """Return what reads some of `FLAGS`, to which a script adds what is its own. said: what the script does."""
    asked = argparse.ArgumentParser(description=said, formatter_class=argparse.RawDescriptionHelpFormatter)
    for flag in flags:
        asked.add_argument(flag, **FLAGS[flag])
    return asked


def checked(asked: argparse.Namespace) -> argparse.Namespace:
    """Return what was asked, with what `--set` changes as `changed`; raises InputError for folders that are not there.

    And for a trial that is not given a folder of its own.
    """
    if "out" in asked and asked.out is not None:
        if asked.out.exists() and not asked.out.is_dir():
            raise InputError(f"--out: {str(asked.out)!r} is no folder")
        asked.out.mkdir(parents=True, exist_ok=True)
    existing("--data-dir", asked.data_dir)
    if "set" in asked:
        asked.changed = numbers(asked.set)
        if asked.changed and asked.out is None:
            raise InputError("--set: measures a trial, which would take the place of published rows; give --out FOLDER")
    return asked
