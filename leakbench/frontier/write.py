"""Write a frontier: rows, page, figure, and the recipe of the setting to use."""

from __future__ import annotations

import dataclasses
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import pandas as pd
import yaml

from leakbench.cell.factors import louder
from leakbench.core.errors import InputError
from leakbench.core.recipe import recipe_name, resolve
from leakbench.defense import Defense
from leakbench.defense.nbafl import Calibration
from leakbench.frontier.answer import answer_of, command_words, setting_of
from leakbench.frontier.choose import NOTHING_REQUIRED, Choice, Requirements, chosen, main_rows, reaching
from leakbench.frontier.figure import draw
from leakbench.frontier.page import page_of
from leakbench.measure.rates import ASR, IDENTIFIED
from leakbench.privacy.budget import Budget
from leakbench.privacy.decay import Scaled
from leakbench.reproduce.columns import text_of
from leakbench.storage.atomic import write_text
from leakbench.study.rows import Row

__all__ = ["measured_defense", "reach_lines", "recipe_text", "said", "write"]


def said(row: Row) -> str:
    """Return the line that reports a measured row."""
    if isinstance(row.get("left_out"), str):
        return f"{row['row']}: left out: {row['left_out']}"
    shares = (f"{name} {text_of(row[key])}" for name, key in SHARES.items())
    return f"{row['row']}, {row['point']}: {', '.join(shares)}, {row['wall_minutes']} min"


SHARES = {
    "accuracy": "trained_accuracy",
    IDENTIFIED.heading: IDENTIFIED.name,
    ASR.heading: ASR.name,
    "valid epsilon": "epsilon_valid",
}


def write(rows: pd.DataFrame, out: Path, dataset: str, wanted: Requirements = NOTHING_REQUIRED) -> Iterator[str]:
    """Write page, figure and recipe of the rows into `out`; yield the answer and the paths.

    Raises:
        InputError: The requirements do not fit the rows.
    """
    name = f"frontier_{Path(dataset).stem}"
    wanted.check(dict.fromkeys(rows["point"].dropna()) if "point" in rows else ())
    main = main_rows(rows, wanted)
    choice = chosen(main, wanted)
    out.mkdir(parents=True, exist_ok=True)
    if len(main):
        draw(main, choice, out / name)
    text, unnamed = _recipe(choice, dataset)
    page, recipe = out / f"{name}.md", out / f"{name}_best.yaml"
    write_text(page, page_of(rows, choice, name, unnamed, out))
    if text is None:
        recipe.unlink(missing_ok=True)  # A recipe of earlier rows or requirements.
    else:
        write_text(recipe, text)
    yield answer_of(main, choice)
    yield f"rows: {out / name}.csv   page: {page}   figure: {out / name}.svg"
    if choice.best is not None:
        yield f"recipe: {recipe if text else f'none was written: {unnamed}'}"


def _recipe(choice: Choice, dataset: str) -> tuple[str | None, str]:
    """Return the best setting's recipe and an empty text, or None and why it cannot be written."""
    if choice.best is None:
        return None, ""
    try:
        return recipe_text(measured_defense(choice.best), _origin(choice, dataset)), ""
    except InputError as error:
        return None, str(error)


def measured_defense(row: pd.Series) -> Defense:
    """Return the defense of a row as it was measured."""
    defense = resolve("defenses", Defense, str(row["defense"]))[1]
    if row["factor"] == 1:
        return defense
    return dataclasses.replace(louder(defense, float(row["factor"])), printed={})


def reach_lines(rows: pd.DataFrame, accuracy: float) -> Iterator[str]:
    """Yield, for every defense with noise, the largest noise whose accuracy reaches a number, and its valid epsilon."""
    main = main_rows(rows)
    yield f"largest measured noise with a mean accuracy of at least {accuracy:g}:"
    for found in reaching(main, accuracy):
        first = found.mean
        row = main[main["row"] == f"{found.sweep}, {first.cell}"]
        sigma = f" (sigma {row.iloc[0]['sigma']})" if len(row) else ""
        yield f"  {found.sweep}: {first.cell}{sigma}, accuracy {first.accuracy}, valid epsilon {first.valid}"


def _origin(choice: Choice, dataset: str) -> str:
    """Return the origin of the recipe, for its note."""
    best = choice.best
    assert best is not None  # noqa: S101 - the caller has checked it
    return (
        f"Selected by `leakbench frontier --dataset {dataset}{command_words(choice.wanted)}`: {setting_of(best).replace('`', '')}, "
        f"the most accurate usable setting on the choosing half of the test examples at which "
        f"identification at {best['point']} is not significantly above chance "
        f"({best['identify_victims']:.0f} victims)."
    )


NESTED = (Budget, Calibration)
"""Classes that a recipe writes as their fields, without a name: the type of the field identifies them."""


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
