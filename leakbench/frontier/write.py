"""What a frontier is written as: rows, page, figure, and the recipe of the setting to use."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pandas as pd

from leakbench.cell.factors import louder
from leakbench.defense import Defense
from leakbench.errors import InputError
from leakbench.frontier.answer import answer_of, setting_of
from leakbench.frontier.choose import Choice, chosen, main_rows, reaching
from leakbench.frontier.figure import draw
from leakbench.frontier.page import page_of
from leakbench.frontier.recipe import recipe_text
from leakbench.recipe import resolve
from leakbench.reproduce.columns import text_of
from leakbench.reproduce.rows import Row
from leakbench.store import write_atomically

__all__ = ["measured_defense", "reach_lines", "said", "write"]


def said(row: Row) -> str:
    """Return what is said of a row when it was measured."""
    if isinstance(row.get("left_out"), str):
        return f"{row['row']}: left out: {row['left_out']}"
    shares = (f"{name} {text_of(row[key])}" for name, key in SHARES.items())
    return f"{row['row']}, {row['point']}: {', '.join(shares)}, {row['wall_minutes']} min"


SHARES = {"accuracy": "trained_accuracy", "identified": "identified", "ASR": "asr", "valid epsilon": "epsilon_valid"}


def write(rows: pd.DataFrame, out: Path, dataset: str) -> Iterator[str]:
    """Write page, figure and recipe of the rows into `out`, and yield what is said of them."""
    name = f"frontier_{Path(dataset).stem}"
    main = main_rows(rows)
    choice = chosen(main)
    out.mkdir(parents=True, exist_ok=True)
    if len(main):
        draw(main, choice, out / name)
    text, unnamed = _recipe(choice, dataset)
    page, recipe = out / f"{name}.md", out / f"{name}_best.yaml"
    write_atomically(page, lambda file: file.write_text(page_of(rows, choice, name, unnamed), encoding="utf-8"))
    if text is None:
        recipe.unlink(missing_ok=True)  # One of rows that are no longer the best, or no longer there.
    else:
        write_atomically(recipe, lambda file: file.write_text(text, encoding="utf-8"))
    yield answer_of(main, choice)
    yield f"rows: {out / name}.csv   page: {page}   figure: {out / name}.svg"
    if choice.best is not None:
        yield f"recipe: {recipe if text else f'none was written: {unnamed}'}"


def _recipe(choice: Choice, dataset: str) -> tuple[str | None, str]:
    """Return the best setting's recipe, and why there is none although there is a best setting."""
    if choice.best is None:
        return None, ""
    try:
        return recipe_text(measured_defense(choice.best), _origin(choice.best, dataset)), ""
    except InputError as error:
        return None, str(error)


def measured_defense(row: pd.Series) -> Defense:
    """Return the defense of a row as it was measured."""
    defense = resolve("defenses", Defense, str(row["defense"]))[1]
    if row["factor"] == 1:
        return defense
    return dataclasses.replace(louder(defense, float(row["factor"])), printed={})


def reach_lines(rows: pd.DataFrame, accuracy: float) -> Iterator[str]:
    """Yield for every defense with noise the most of it whose accuracy reaches a number, and what epsilon follows."""
    main = main_rows(rows)
    yield f"the largest noise whose accuracy, the mean over seeds, reaches {accuracy:g}, of those measured:"
    for found in reaching(main, accuracy):
        row = main[main["row"] == f"{found.sweep}, {found.cell}"]
        sigma = f" (sigma {row.iloc[0]['sigma']})" if len(row) else ""
        yield f"  {found.sweep}: {found.cell}{sigma}, accuracy {found.accuracy}, valid epsilon {found.valid}"


def _origin(best: pd.Series, dataset: str) -> str:
    """Return what the recipe's note says of where it comes from."""
    return (
        f"Chosen by `leakbench frontier --dataset {dataset}`: {setting_of(best).replace('`', '')}, the most accurate that was "
        f"measured whose identification at {best['point']} is not told from chance by {best['identify_victims']:.0f} victims."
    )
