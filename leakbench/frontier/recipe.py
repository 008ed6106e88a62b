"""A defense as the YAML of a recipe: what `leakbench.recipe.load` reads back as the same parts, with every number written out."""

from __future__ import annotations

import dataclasses
import textwrap
from collections.abc import Mapping
from typing import Any, cast

import yaml

from leakbench.decay import Scaled
from leakbench.defense import Defense
from leakbench.defense.nbafl import Calibration
from leakbench.errors import InputError
from leakbench.privacy.budget import Budget
from leakbench.recipe import recipe_name

__all__ = ["recipe_text"]

NESTED = (Budget, Calibration)
"""Of which a field knows the kind, so that their fields stand there without a name."""


def recipe_text(defense: Defense, where: str) -> str:
    """Return the recipe of a defense as YAML, its fields that are not the usual ones.

    Args:
        where: What is added to its note, as from which measurement it comes. Raises InputError for a part that no recipe can
            name: neither leakbench's own nor one of the entry-point group `leakbench.parts`.
    """
    noted = dataclasses.replace(defense, note=" ".join(f"{' '.join(defense.note.split())} {where}".split()))
    fields = {name: _plain(value) for name, value in _changed(noted).items() if name != "note"}
    note = "\n".join(
        textwrap.wrap(noted.note, 130, initial_indent="  ", subsequent_indent="  ", break_on_hyphens=False)
    )
    lines = [_line(name, fields[name]) for name in ("title", "cite")]
    return (
        "\n".join([*lines, f"note: >\n{note}", *(_line(n, v) for n, v in fields.items() if n not in ("title", "cite"))])
        + "\n"
    )


def _line(name: str, value: Any) -> str:
    said = yaml.safe_dump(value, default_flow_style=True, sort_keys=False, allow_unicode=True, width=10**6)
    return f"{name}: {said.removesuffix(chr(10)).removesuffix('...').rstrip()}"


def _changed(value: Any) -> dict[str, Any]:
    """Return the fields of a part that are not what they are by default."""
    found = {}
    for field in dataclasses.fields(value):
        now = getattr(value, field.name)
        if now != {} and not (type(now) is type(field.default) and now == field.default):
            found[field.name] = now
    return found


def _plain(value: Any) -> Any:
    """Return what YAML writes: a part as its name, alone or with its fields; another dataclass as its fields."""
    if isinstance(value, Scaled):
        value = _multiplied(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {name: _plain(each) for name, each in _changed(value).items()}
        if isinstance(value, NESTED):
            return fields
        name = recipe_name(type(value))
        if name is None:
            raise InputError(
                f"{type(value).__qualname__}: no recipe can name this part, an entry point of `leakbench.parts` would"
            )
        return {name: fields} if fields else name
    if isinstance(value, tuple | list):
        return [_plain(each) for each in value]
    if isinstance(value, Mapping):
        return {key: _plain(each) for key, each in value.items()}
    # The last digits of a product such as 6 x .1 are the arithmetic's.
    return float(f"{value:.12g}") if isinstance(value, float) else value


def _multiplied(scaled: Scaled) -> Any:
    """Return the schedule with its ends times the factor, where that is the same; else itself."""
    curve = scaled.decay
    ends = {name: getattr(curve, name) * scaled.factor for name in ("start", "end") if hasattr(curve, name)}
    # Stairs of whole steps, and an epsilon from which noise follows, do not grow with their ends.
    if not ends or type(curve).__name__ == "StaircaseReleased":
        return scaled
    return dataclasses.replace(cast(Any, curve), **ends)
