"""The page of one cell at several levels of noise: a slider moves through them, and what was rebuilt fades."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from markupsafe import Markup

from leakbench.errors import InputError
from leakbench.report.columns import COLUMNS, Column
from leakbench.report.epsilons import epsilons
from leakbench.report.figures_levels import levels_figure
from leakbench.report.finished import Finished
from leakbench.report.gallery import Series, Tile, fitting, pointed, tiles
from leakbench.report.pictures import shrinks
from leakbench.report.render import render
from leakbench.report.several import flat, titles
from leakbench.report.words import number, reading, training

__all__ = ["levels_page", "noise_of", "ordered"]

BESIDE = ("ASR [95% CI]", "baseline ASR", "RMSE", "identified", "label acc.", "label ranked")
"""Columns of the table that stand beside the pictures."""

ALIKE_ENOUGH = ("device", "engine", "lpips", "taps")
"""Settings that may differ between levels: leakage points that not all of them have are left out."""


@dataclass(frozen=True)
class Level:
    """One level of noise: its run, its name, and its noise multiplier, 0 without any."""

    run: Finished
    name: str
    noise: float
    accuracy: str
    claimed: str
    valid: str


@dataclass(frozen=True)
class Stacks:
    """The same victims at all levels: for each row a heading, and for each victim lists of tiles, one tile a level.

    Of the truth, which is the same at all levels, there is one tile.
    """

    round: int
    headings: list[str]
    rows: list[list[list[list[Tile]]]]
    pictures: bool
    victims: int
    shown: int
    smaller: int


def levels_page(runs: Sequence[Finished]) -> str:
    """Return the page of three runs or more, which `read_several` has read.

    Raises InputError where they are no levels of noise of one cell.
    """
    levels = ordered(runs)
    # Of leakage points only what all levels have; the one with the fewest says which those are.
    first = min((level.run for level in levels), key=lambda run: len(run.summary["taps"]))
    cell = first.manifest["cell"]
    defense = next(level.run.manifest["cell"]["defense"] for level in reversed(levels)).partition(" (")[0]
    columns = [column for column in COLUMNS if column.heading in BESIDE]
    taps = [name for name in first.summary["taps"] if all(name in level.run.summary["taps"] for level in levels)]
    return render(
        "levels.html.jinja",
        attack=cell["attack"],
        dataset=cell["dataset"],
        defense=defense,
        levels=levels,
        names=json.dumps([level.name for level in levels]),
        taps=taps,
        columns=columns,
        texts=[_texts(level, taps, columns) for level in levels],
        stacks=_stacks(levels),
        figure=_figure(levels, taps),
        readings=[reading(level.run.summary) for level in levels],
        training=training(first.summary).split(" | ")[1:],
    )


def ordered(runs: Sequence[Finished]) -> list[Level]:
    """Return the levels from the least noise to the most; raises InputError where runs differ in more, or in nothing."""
    first = runs[0]
    base = max(runs, key=lambda run: noise_of(run.manifest["recipes"]["defense"]))
    for run in runs:
        if run.manifest["recipes"]["attack"] != first.manifest["recipes"]["attack"]:
            attacks = [repr(r.manifest["cell"]["attack"]) for r in (first, run)]
            raise InputError(
                f"report: the runs are of the attacks {attacks[0]} and {attacks[1]}; expected levels of one cell"
            )
        mine, theirs = (_settings(r) for r in (first, run))
        other = sorted(name for name in {*mine, *theirs} if mine.get(name) != theirs.get(name))
        if other:
            raise InputError(
                f"report: {str(first.folder)!r} and {str(run.folder)!r} differ in {', '.join(other)}; expected of three runs"
                " or more that they are levels of noise of one cell"
            )
        recipe = run.manifest["recipes"]["defense"]
        if noise_of(recipe) and _quiet(recipe) != _quiet(base.manifest["recipes"]["defense"]):
            names = [repr(r.manifest["cell"]["defense"]) for r in (base, run)]
            raise InputError(
                f"report: the defenses {names[0]} and {names[1]} differ in more than their noise; of three runs or more expected"
                " levels of noise of one cell"
            )
    levels = sorted(
        (_level(run, name) for run, name in zip(runs, _names(runs), strict=True)), key=lambda level: level.noise
    )
    for one, other_level in pairwise(levels):
        if one.noise == other_level.noise:
            raise InputError(
                f"report: {str(one.run.folder)!r} and {str(other_level.run.folder)!r} have the same noise; give each level once"
            )
    return levels


def noise_of(recipe: Mapping[str, Any]) -> float:
    """Return the largest noise multiplier of a described defense's transforms, 0 where none adds noise.

    Of a multiplier that changes over the rounds it is the largest number in it, times its factors.
    """
    return max((_largest(value) for name, value in _multipliers(recipe)), default=0.0)


def _multipliers(recipe: Mapping[str, Any]) -> list[tuple[str, Any]]:
    found = []
    for station in ("example", "batch", "client", "server"):
        for part in recipe.get(station) or []:
            if part.get("multiplier") is not None:
                found.append((station, part["multiplier"]))
    return found


def _largest(value: Any) -> float:
    if not isinstance(value, dict):
        return float(value)
    if "factor" in value:
        inner = next(v for name, v in value.items() if name not in ("part", "factor"))
        return float(value["factor"]) * _largest(inner)
    return max(
        (float(v) for _, v in flat(value) if isinstance(v, int | float) and not isinstance(v, bool)), default=0.0
    )


def _quiet(recipe: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a defense does, without how strong its noise is and what is said of it."""
    unsaid = ("title", "cite", "note", "claim", "printed", "printed_by", "budget")
    kept = {name: value for name, value in recipe.items() if name not in unsaid}
    for station in ("example", "batch", "client", "server"):
        kept[station] = [
            {name: value for name, value in part.items() if name != "multiplier"} for part in recipe.get(station) or []
        ]
    return kept


def _settings(run: Finished) -> dict[str, Any]:
    settings = {k: v for k, v in run.manifest["settings"].items() if k not in ALIKE_ENOUGH}
    return dict(flat(settings))


def _names(runs: Sequence[Finished]) -> list[str]:
    """Return what a level is called: the factor in the defense's name where it has one."""
    names = []
    for run, title in zip(runs, titles(runs), strict=True):
        _, bracket, factor = title.partition(" (")
        if bracket:
            names.append(factor.removesuffix(")"))
        elif noise_of(run.manifest["recipes"]["defense"]) == 0:
            names.append(title if title == "no defense" else f"{title}, no noise")
        else:
            names.append(title)
    plain = {run.manifest["cell"]["defense"] for run in runs if "(" in run.manifest["cell"]["defense"]}
    bases = {name.partition(" (")[0] for name in plain}
    # The recipe as it is stands among its multiples as what it is of itself.
    names = ["noise × 1" if name in bases else name for name in names]
    return names if len(set(names)) == len(names) else titles(runs)


def _level(run: Finished, name: str) -> Level:
    claimed, observed = epsilons(run.summary)
    noise, valid = noise_of(run.manifest["recipes"]["defense"]), observed[0].valid if observed else "n/a"
    return Level(run, name, noise, number(run.summary.get("accuracy"), 3), claimed, valid)


def _texts(level: Level, taps: Sequence[str], columns: Sequence[Column]) -> list[list[str]]:
    return [[column.text(level.run.summary["taps"][name]) for column in columns] for name in taps]


def _stacks(levels: Sequence[Level]) -> list[Stacks]:
    fewest = min((level.run for level in levels), key=lambda run: len(run.arrays))
    groups = list(pointed(fewest.arrays, fewest.rows))
    answers = [
        {(leak, one.heading): one for leak, group in pointed(level.run.arrays, level.run.rows) for one in group[1:]}
        for level in levels
    ]
    shapes = [one.examples.shape for _, (truth, *rest) in groups for one in (truth, *rest * len(levels))]
    victims, members = fitting(shapes)
    return [_stack(leak, group, answers, levels, victims, members) for leak, group in groups]


def _stack(
    leak: int,
    group: Sequence[Series],
    answers: Sequence[Mapping[tuple[int, str], Series]],
    levels: Sequence[Level],
    victims: int,
    members: int,
) -> Stacks:
    truth, *rest = group
    rows = [[[[tile] for tile in victim] for victim in tiles(truth, victims, members)]]
    kept = [one.heading for one in rest if all((leak, one.heading) in of_level for of_level in answers)]
    for tap in kept:
        each = [
            tiles(of_level[leak, tap], victims, members, f"{tap}, {level.name}")
            for of_level, level in zip(answers, levels, strict=True)
        ]
        # (level, victim, member) -> (victim, member, level)
        rows.append([[list(one) for one in zip(*victim, strict=True)] for victim in zip(*each, strict=True)])
    shape = truth.examples.shape
    shown = min(victims, shape[0])
    return Stacks(leak, ["truth", *kept], rows, len(shape) == 5, shape[0], shown, shrinks(shape[2:]))


def _figure(levels: Sequence[Level], taps: Sequence[str]) -> Markup:
    def curve(field: str) -> dict[str, list[float]]:
        return {tap: [_value(level.run.summary["taps"][tap].get(field)) for level in levels] for tap in taps}

    accuracy = {"accuracy": [_value(level.run.summary.get("accuracy")) for level in levels]}
    names = [f"{level.name.removeprefix('noise ')}" for level in levels]
    return levels_figure(names, {"ASR": curve("asr"), "identified": curve("identified"), "accuracy": accuracy})


def _value(value: float | None) -> float:
    return math.nan if value is None else float(value)
