"""Measure a frontier: each point once, saved when it is complete; a row of the CSV is not measured again."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd

from leakbench.cell import Cell, Request
from leakbench.core.errors import InputError
from leakbench.core.progress import cells_line
from leakbench.core.typed import check_fields
from leakbench.data.find import Load, load_dataset
from leakbench.frontier.choose import CHOICE
from leakbench.frontier.grid import DEFENSES, OUT, Point, points_of
from leakbench.frontier.measure import LIMITS, SAME, asked_of, cells_at, command_of, left_out, measured
from leakbench.measure.rates import ASR, IDENTIFIED, LABEL_RANKED
from leakbench.study.rows import CURE, FRONTIER, Row, RowStore, on_cpu
from leakbench.study.stale import Published, Today, hash_of, today_of, versions_in
from leakbench.study.study import Execution, Job, Study

__all__ = ["frontier", "ordered", "points_in", "published_points", "rows_file", "store_of"]


FILLED = ("point", "verdict", "victims", "identify_victims", "candidates", "seeds", "delta")
"""Columns that are filled in every measured row."""

MEASURED = (
    *FILLED,
    CHOICE,
    "hash",
    *(f"trained_accuracy{end}" for end in ("", "_low", "_high")),
    *(*IDENTIFIED.ends, *ASR.ends, ASR.baseline, LABEL_RANKED.name),
    *("null_label", "identify_p", "null_identified_low", "null_identified_high", "sigma"),
    *("epsilon_valid", "epsilon_tap", "epsilon_claimed", "epsilon_reason", "epsilon_tap_reason", "wall_minutes"),
)
"""Columns that page and figure need."""

ASKED = {*SAME, "seeds", "identify"}


def rows_file(out: Path, dataset: str) -> Path:
    """Return the path of the rows of a data set's frontier."""
    return out / f"frontier_{Path(dataset).stem}.csv"


def store_of(path: Path) -> RowStore:
    """Return the rows of a frontier; reading them raises InputError for a damaged file."""
    return RowStore(path, FRONTIER, partial(_checked, path), ordered)


def _checked(path: Path, rows: pd.DataFrame) -> pd.DataFrame:
    for text in rows["asked"]:
        _check_asked(path, text)
    done = rows[rows["left_out"].isna()]
    for name in MEASURED if len(done) else ():
        if name not in rows:
            raise InputError(f"{path}: column {name!r} is missing; {CURE}")
        if name in FILLED and (done[name].isna() | (done[name] == "")).any():
            raise InputError(f"{path}: {name}: a measured row has no value; {CURE}")
    return rows


def _check_asked(path: Path, text: str) -> None:
    """Raise InputError, with the field, where the fields that all rows share are missing or of other types."""
    asked = json.loads(text)
    counts = [asked.get(name) for name in ("seeds", "identify")]
    if not (asked.keys() >= ASKED and asked.get("taps") and all(type(count) is int for count in counts)):
        raise InputError(f"{path}: asked: got {text[:40]!r}, expected the sizes that all rows share; {CURE}")
    try:
        check_fields(Request, {name: asked[name] for name in ("taps", *SAME, *LIMITS) if name in asked}, "a frontier")
    except InputError as error:
        raise InputError(f"{path}: asked.{error}; {CURE}") from None


def frontier(
    request: Request,
    defenses: Sequence[str],
    factors: Sequence[float],
    seeds: int,
    identify: int,
    out: Path,
    command: str,
    execution: Execution,
    say: Callable[[Row], None],
    named: bool,
) -> pd.DataFrame:
    """Measure every defense at every factor without a row in `out`, one factor of all defenses before the next; return all rows.

    Args:
        request: The cell that all points share.
        defenses: Names of defenses or paths of recipes.
        factors: Factors on the noise, the largest first.
        seeds: Number of trainings of each point.
        identify: Largest number of victims that are only identified.
        out: Folder of the rows.
        command: The command, for the manifests.
        execution: Where and how cells are run.
        say: Receives each new row.
        named: Whether the user named the defenses, so that one that does not fit is an error and not left out.

    Raises:
        InputError: A named defense does not fit, data are missing, or the rows in `out` have other sizes.
    """
    store, asked = store_of(rows_file(out, request.dataset)), asked_of(request, seeds, identify)
    rows = store.read()
    if len(rows) and set(rows["asked"]) != {asked}:
        raise InputError(
            f"out: {store.path} has rows of other sizes ({_differs(rows, asked)}); expected the same sizes, or another --out"
        )
    points = _planned(request, defenses, factors, execution.data_dir, named)
    load_dataset(
        request.dataset, execution.data_dir
    )  # Missing data stop the command: they are not a reason to leave a defense out.
    known = on_cpu(rows.loc[rows["left_out"].isna()])
    took = known.groupby("cell")["wall_minutes"].sum().tolist() if len(known) else []
    fresh = sum(not why and point.name not in set(rows["cell"]) for point, why in points)
    if fresh:
        # Each setting has a cell for each training, and one that only identifies victims.
        line = cells_line(fresh * (seeds + 1), [60.0 * each for each in took], fresh)
        execution.reporter.note(f"frontier of {request.dataset}: {line}")

    def cells_of(point: Point) -> list[Cell]:
        return cells_at(point, request, seeds, identify, execution.data_dir)

    def rows_of(point: Point) -> list[Row]:
        return measured(point, cells_of(point), asked, command, execution)

    def jobs() -> Iterator[Job[list[Row]]]:
        for place, (point, why) in enumerate(points, 1):
            heading = f"setting {place} of {len(points)}, {point.name}"
            try:
                if why:
                    raise InputError(why)
                cells = cells_of(point)
            except InputError as error:
                yield Job(point.name, partial(_left_out, point, asked, str(error)), heading=heading)
                continue
            if not store.has(rows, point.name, hash_of(cells)):
                requests = tuple(cell.request for cell in cells if cell.request is not None)
                yield Job(point.name, partial(rows_of, point), requests, command, heading)

    return Study(store)(jobs(), execution, say)


def _left_out(point: Point, asked: str, why: str) -> list[Row]:
    return [left_out(point, asked, why)]


def ordered(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows by defense, the default ones first, and each defense from the most noise to the least."""
    places = {name: place for place, name in enumerate(DEFENSES)}
    keys = pd.DataFrame(
        {
            "place": rows["defense"].map(lambda name: places.get(name, len(places))),
            "defense": rows["defense"],
            "softness": -rows["factor"],
        }
    )
    order = keys.sort_values(["place", "defense", "softness"], kind="stable").index
    return rows.loc[order].reset_index(drop=True)


def _planned(
    request: Request, defenses: Sequence[str], factors: Sequence[float], data_dir: Path | None, named: bool
) -> list[tuple[Point, str]]:
    """Return every point with why it cannot be measured, else an empty text; one factor of all defenses before the next."""
    found: list[tuple[int, Point, str]] = []
    for defense in defenses:
        try:
            points = points_of(dataclasses.replace(request, defense=defense), factors, data_dir)
        except InputError as error:
            if named:
                raise InputError(f"{defense}: {error}") from None
            found.append((0, Point(defense), str(error)))
            continue
        found += [(place, point, "") for place, point in enumerate(points)]
    if found and all(why for _, _, why in found):  # No defense fits: the request is wrong, not a defense.
        same = {why for _, _, why in found}
        raise InputError(
            found[0][2] if len(same) == 1 else f"none of {len(found)} defenses fits; {found[0][1].name}: {found[0][2]}"
        )
    return [(point, why) for _, point, why in sorted(found, key=lambda each: each[0])]


def _differs(rows: pd.DataFrame, asked: str) -> str:
    before, now = json.loads(next(a for a in rows["asked"] if a != asked)), json.loads(asked)
    return ", ".join(
        f"{key} {_said(before.get(key))}, asked {_said(now[key])}" for key in now if before.get(key) != now[key]
    )


def _said(size: Any) -> str:
    return "the data set's own" if size is None else str(size)


def published_points(out: Path, data_dir: Path | None) -> Iterator[Published]:
    """Yield the measured points of every frontier that has a CSV in `out`."""
    for path in sorted((*out.glob("frontier_*.csv"), *out.glob("frontier/frontier_*.csv"))):
        yield from points_in(path.stem, store_of(path).read(), data_dir, path.parent)


def points_in(page: str, rows: pd.DataFrame, data_dir: Path | None = None, out: Path = OUT) -> Iterator[Published]:
    """Yield the measured points among the rows of a frontier.

    Args:
        page: Name of the frontier.
        rows: Its rows.
        data_dir: Folder of the data sets; None for the default.
        out: Folder of the rows.
    """
    again = command_of(rows, out) if len(rows) else ""
    for row in rows[rows["left_out"].isna()].drop_duplicates("cell").to_dict("records"):
        yield _published(page, row, again, data_dir)


def _published(page: str, row: Mapping[Any, Any], again: str, data_dir: Path | None) -> Published:
    point, request, asked = _asked(row)

    def today(load: Load) -> Today:
        return today_of(cells_at(point, request, asked["seeds"], asked["identify"], data_dir, load))

    return Published(
        page=page,
        row=str(row["cell"]),
        hash=str(row.get("hash", "")),
        dataset=str(asked["dataset"]),
        today=today,
        requests=lambda: [request],
        recorded=versions_in(row),
        again=again,
    )


def _asked(row: Mapping[Any, Any]) -> tuple[Point, Request, dict[str, Any]]:
    """Return a row's point, its request, and the fields that all rows of its frontier share."""
    asked = json.loads(row["asked"])
    point = Point(str(row["defense"]), float(row["factor"]), bool(row["noise"]))
    shared = {name: asked[name] for name in (*SAME, *LIMITS) if name in asked}
    factor = None if point.factor == 1.0 else point.factor
    request = Request(**shared, defense=point.defense, noise_factor=factor, taps=tuple(asked["taps"]), knows="defense")
    return point, request, asked
