"""The command line of a request."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from typing import Any

from leakbench.cell.request import Request

__all__ = ["options_of", "run_words"]

FLAGS = {"join_rounds": "--join-rounds", "pictures": "--no-pictures"}
"""{field of a request that is true or false: the option that changes it}."""


def options_of(given: Any, usual: Any, without: Collection[str] = ()) -> list[str]:
    """Return the options of the fields that differ from the usual ones.

    Args:
        given, usual: Two objects of one dataclass.
        without: Fields that are left out.
    """
    found: list[str] = []
    for field in dataclasses.fields(given):
        value = getattr(given, field.name)
        if value == getattr(usual, field.name) or field.name in without:
            continue
        if field.name in FLAGS:
            found.append(FLAGS[field.name])
            continue
        text = ",".join(value) if isinstance(value, tuple) else str(value)
        found += [f"--{field.name.replace('_', '-')}", f"rmse<={value}" if field.name == "success" else text]
    return found


def run_words(request: Request, without: Collection[str] = ()) -> list[str]:
    """Return the words of the command that runs a request, with the command line's own default of the device."""
    return ["leakbench", "run", *options_of(request, dataclasses.replace(Request(), device="auto"), without)]
