"""The YAML files of tables: their folder, names and fields, the type of each field, and which fields go together."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import Field

from leakbench.cell import Request
from leakbench.core.errors import InputError, check_file, nearest
from leakbench.core.leakage_points import LeakagePoint
from leakbench.core.part import Fraction, Text, part
from leakbench.core.recipe import construct, is_path, read_yaml
from leakbench.core.request import fields_of, refuse_code
from leakbench.measure.rates import ASR

__all__ = [
    "ALL",
    "WrittenRow",
    "WrittenTable",
    "as_written",
    "body_of",
    "called",
    "cell_fields",
    "check_claims",
    "check_kind",
    "check_leaks",
    "claims_of",
    "natural",
    "quick_fields",
    "results_folder",
    "rows_folder",
    "rows_path",
    "studies_folder",
    "table_names",
]


ALL = "all"
"""The name for all tables, in a command."""

RECIPES = "recipes"
"""Folder of recipes that only tables use, next to the groups of tables."""


def studies_folder() -> Path:
    """Return the folder with the groups of tables: inside the wheel, or in a checkout."""
    package = Path(__file__).parents[1]
    inside = package / "catalog" / "studies"
    return inside if inside.is_dir() else package.parent / "studies"


def results_folder() -> Path:
    """Return the folder of the published results of a checkout; a wheel has none."""
    return studies_folder().parent / "results"


def _paths() -> dict[str, Path]:
    return {path.stem: path for path in studies_folder().glob("*/*.yaml") if path.parent.name != RECIPES}


def table_names() -> list[str]:
    """Return the names of all tables, in natural order: a file's name is its table's."""
    return sorted(_paths(), key=natural)


def natural(name: str) -> list[str | int]:
    """Return the key that sorts names by their numbers: `table_2` comes before `table_10`."""
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name)]


def rows_folder(out: Path, name: str) -> Path:
    """Return the folder of a table's rows and page below a folder of results.

    Args:
        out: Folder of results.
        name: Name of a table.

    Returns:
        `out`/GROUP where `out` has a folder for each group of tables, as the published results have; else `out`.
    """
    path = _paths().get(name)
    if path is None or (out / f"{name}.csv").is_file() or not (out / path.parent.name).is_dir():
        return out
    return out / path.parent.name


def rows_path(out: Path, name: str) -> Path:
    """Return the CSV of a table's rows below a folder of results."""
    return rows_folder(out, name) / f"{name}.csv"


def body_of(name: str) -> tuple[Path, dict[str, Any]]:
    """Return (path, content) for a table's name, or for the path of a user's file.

    Raises InputError for an unknown name, a missing file, a file that is not YAML, and a user's file with the name of a table of
    leakbench, whose rows it would replace.
    """
    known = _paths()
    if is_path(name):
        path = Path(name)
        check_file("table", name)
        if path.stem in known and not path.samefile(known[path.stem]):
            raise InputError(
                f"table: {name!r} has the name of a table of leakbench, {path.stem!r}; rename the file, or give the name alone"
                " for leakbench's table"
            )
        path = known.get(path.stem, path)
    else:
        if name not in known:
            raise InputError(
                f"table: unknown name {name!r}{nearest(name, [*sorted(known), ALL], 'leakbench reproduce')}"
                " (or a path that ends in .yaml)"
            )
        path = known[name]
    body = read_yaml(path)
    if not isinstance(body, dict):
        raise InputError(f"{path}: expected the fields of a table, got {type(body).__name__}")
    return path, body


def called(path: Path) -> str:
    """Return the argument that selects this table in a command: its name, or the path of a user's file; quoted for a shell."""
    return shlex.quote(path.stem if path == _paths().get(path.stem) else str(path))


T = TypeVar("T")

Seeds = Annotated[int, Field(ge=1, le=1000)]
Natural = Annotated[int, Field(ge=0)]
Values = tuple[str | int | float | None, ...] | Mapping[Any, Any]
Printed = tuple[Annotated[float, Field(allow_inf_nan=False)] | None, ...]


@part
class WrittenTable:
    """The fields of a table; what they mean says `leakbench.reproduce.table`. Where `most_seeds` is 0, the file has none."""

    title: Text
    given: Mapping[str, Any]
    rows: tuple[Mapping[str, Any], ...]
    text: str = ""
    question: str = ""
    answer: str = ""
    kind: str = "cells"
    cite: str = ""
    columns: str = "claims"
    found: str = ""
    apart: Mapping[str, str] = field(default_factory=dict)
    samples: Mapping[str, Any] = field(default_factory=dict)
    samples_from: str = ""
    quick: Mapping[str, Any] = field(default_factory=dict)
    seeds: Seeds = 1
    most_seeds: Seeds = 0
    pictures: Natural = 0
    repeats: Natural = 0
    curves: Mapping[str, tuple[Text, ...]] = field(default_factory=dict)
    orders: tuple[Mapping[str, Any], ...] = ()
    window: Natural = 0
    leaks: str = ""


@part
class WrittenRow:
    """The fields of a row. Where `seeds` or `most_seeds` is 0, those of the table count."""

    name: Text
    given: Mapping[str, Any] = field(default_factory=dict)
    each: Mapping[str, Values] = field(default_factory=dict)
    printed: Mapping[str, Printed] = field(default_factory=dict)
    claim: Mapping[str, Any] = field(default_factory=dict)
    aim: Fraction | None = None
    apart: Mapping[str, str] = field(default_factory=dict)
    because: str = ""
    seeds: Seeds = 0
    most_seeds: Seeds = 0
    quick: Literal[False] | Mapping[str, Any] = field(default_factory=dict)


def as_written(path: Path, cls: type[T], fields: Mapping[str, Any], where: str = "") -> T:
    """Return the fields of a file as one of the classes that declare them.

    Raises:
        InputError: With the file and `where` in it, for a missing or unknown field and for a wrong value.
    """
    try:
        return construct(cls, fields)
    except InputError as error:
        raise InputError(f"{path}: {where}{error}") from None


def check_kind(path: Path, table: WrittenTable, rows: Sequence[WrittenRow]) -> None:
    """Raise InputError for fields that do not go together: a table is of cells, of costs, of pictures or of curves.

    repeats: of costs, whose columns are `cost`; they are of one seed and of no leakage point.  pictures, curves: each is the one
    figure of a page.  orders, window: of curves.
    """
    of_costs = table.columns == "cost"
    if of_costs and not table.repeats:
        raise InputError(f"{path}: columns: cost goes with repeats; got none, expected a whole number >= 1")
    if table.repeats:
        if not of_costs:
            raise InputError(f"{path}: repeats: goes with columns: cost, got columns: {table.columns}")
        for name, most in (("pictures", 0), ("curves", 0), ("seeds", 1), ("most_seeds", 1)):
            number = getattr(table, name)
            if (number if isinstance(number, int) else len(number)) > most:
                raise InputError(f"{path}: {name}: a table with repeats times one seed and draws nothing; leave it out")
        for row in rows:
            if row.aim is not None or row.seeds > 1 or row.most_seeds > 1:
                raise InputError(
                    f"{path}: row {row.name!r}: aim, seeds: a table with repeats has neither; leave them out"
                )
    if table.orders and (table.most_seeds or any(row.most_seeds for row in rows)):
        raise InputError(
            f"{path}: most_seeds: orders compare rows seed by seed, which needs as many in each; leave it out"
        )
    if table.pictures and table.curves:
        raise InputError(f"{path}: pictures, curves: both are the figure of the page; leave one out")
    for name in ("orders", "window"):
        if getattr(table, name) and not table.curves:
            raise InputError(f"{path}: {name}: requires curves; add them or leave it out")


def check_leaks(path: Path, table: WrittenTable, rows: Sequence[WrittenRow]) -> None:
    """Raise InputError where `leaks` is not a table, or where nothing aims at an accuracy or the page has another figure."""
    if table.leaks and table.leaks not in table_names():
        raise InputError(f"{path}: leaks: unknown table {table.leaks!r}{nearest(table.leaks, table_names())}")
    if table.leaks and (table.pictures or table.curves or all(row.aim is None for row in rows)):
        raise InputError(
            f"{path}: leaks: needs rows with an aim, and is the figure of the page; leave out pictures, curves"
        )


CLAIMED_SHARES = (ASR.name, "recall", "accuracy")
"""Claims that are shares of victims or test examples."""


def claims_of(where: str, claim: Mapping[str, Any], known: tuple[str, ...]) -> dict[str, dict[str, float]]:
    """Return {leakage point, "" for every one: {what: number}} of a row's claim, which may have some of a point's own.

    Args:
        known: What may be claimed. Raises InputError for another name, and for a value that is not a finite number.
    """
    own = {name: dict(claimed) for name, claimed in claim.items() if isinstance(claimed, Mapping)}
    every = {name: claimed for name, claimed in claim.items() if name not in own}
    found = {**({"": every} if every else {}), **own}
    for point, claimed in found.items():
        for what, number in claimed.items():
            if what not in known:
                raise InputError(f"{where}claim: {what!r} is not measured{nearest(str(what), known)}")
            if type(number) not in (int, float) or not math.isfinite(number):
                said = ": ".join(filter(None, (point, what)))
                raise InputError(f"{where}claim: {said}: got {number!r}, expected a finite number")
            if what in CLAIMED_SHARES and not 0 <= number <= 1:
                said = ": ".join(filter(None, (point, what)))
                raise InputError(f"{where}claim: {said}: got {number!r}, expected a share from 0 to 1, not percent")
    return found


def check_claims(where: str, points: Mapping[str, Any], given: Mapping[str, Any], costs: bool) -> None:
    """Raise InputError for a claim at a leakage point that a cell with these fields does not leak at.

    Args:
        costs: Whether nothing but time is measured, and so at no point.
    """
    known = () if costs else _points(given)
    for point in points:
        if point and point not in known and not (LeakagePoint.of(point).tap in known and _any_round(point, given)):
            said = nearest(point, known) if known else "; a table with repeats has none"
            raise InputError(f"{where}claim: {point!r} is not a leakage point of the cell{said}")


def _points(given: Mapping[str, Any]) -> tuple[str, ...]:
    """Return what a claim may call the leakage points of a cell: by the tap alone, and of the live protocol by its round."""
    taps: tuple[str, ...] = given.get("taps", Request.taps)
    if given.get("protocol", Request.protocol) != "live":
        return taps
    leak_rounds: tuple[str, ...] = given.get("leak_rounds", Request.leak_rounds)
    rounds = [str(given.get("train_rounds")) if each == "last" else each for each in leak_rounds]
    ends = ["+".join(rounds)] if given.get("join_rounds") else rounds
    return (*taps, *(f"{tap}@{end}" for tap in taps for end in ends))


def _any_round(point: str, given: Mapping[str, Any]) -> bool:
    """Say whether a point may be of the last round, whose number the data set's recipe alone knows."""
    unknown = (
        given.get("protocol") == "live" and given.get("train_rounds") is None and "last" in given.get("leak_rounds", ())
    )
    found = LeakagePoint.of(point)
    return unknown and bool(found.rounds) and found.key == point


def cell_fields(where: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return fields of a cell as a `Request` has them; raises InputError, with `where`, for unknown fields and other types."""
    try:
        refuse_code(given)
        return fields_of(given)
    except InputError as error:
        raise InputError(f"{where}{error}") from None


def quick_fields(where: str, quick: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that the scale `quick` gives, as `cell_fields` does, and its number of seeds where it has one."""
    seeds = quick.get("seeds", 1)
    if type(seeds) is not int or not 1 <= seeds <= 1000:
        raise InputError(f"{where}quick: seeds: got {seeds!r}, expected a whole number from 1 to 1000")
    return {**quick, **cell_fields(f"{where}quick: ", {k: v for k, v in quick.items() if k != "seeds"})}
