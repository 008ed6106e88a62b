"""Write a frontier: rows, page, figure, and the recipe of the setting to use."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pandas as pd

from leakbench.cell.factors import louder
from leakbench.defense import Defense
from leakbench.errors import InputError
from leakbench.frontier.answer import answer_of, command_words, setting_of
from leakbench.frontier.choose import NOTHING_REQUIRED, Choice, Requirements, chosen, main_rows, reaching
from leakbench.frontier.figure import draw
from leakbench.frontier.page import page_of
from leakbench.frontier.recipe import recipe_text
from leakbench.measure.rates import ASR, IDENTIFIED
from leakbench.recipe import resolve
from leakbench.reproduce.columns import text_of
from leakbench.store import write_atomically
from leakbench.study.rows import Row

__all__ = ["measured_defense", "reach_lines", "said", "write"]


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
    write_atomically(page, lambda file: file.write_text(page_of(rows, choice, name, unnamed), encoding="utf-8"))
    if text is None:
        recipe.unlink(missing_ok=True)  # A recipe of earlier rows or requirements.
    else:
        write_atomically(recipe, lambda file: file.write_text(text, encoding="utf-8"))
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
        row = main[main["row"] == f"{found.sweep}, {found.cell}"]
        sigma = f" (sigma {row.iloc[0]['sigma']})" if len(row) else ""
        yield f"  {found.sweep}: {found.cell}{sigma}, accuracy {found.accuracy}, valid epsilon {found.valid}"


def _origin(choice: Choice, dataset: str) -> str:
    """Return the origin of the recipe, for its note."""
    best = choice.best
    assert best is not None  # noqa: S101 - the caller has checked it
    return (
        f"Selected by `leakbench frontier --dataset {dataset}{command_words(choice.wanted)}`: {setting_of(best).replace('`', '')}, "
        f"the most accurate usable setting at which identification at {best['point']} is not significantly above chance "
        f"({best['identify_victims']:.0f} victims)."
    )
