"""The page of one cell at several levels of noise, with a slider through them."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from markupsafe import Markup

from leakbench.core.errors import InputError
from leakbench.core.leakage_points import point_name
from leakbench.core.svg import DASHES, SERIES, drawn, inline
from leakbench.measure.rates import ASR, IDENTIFIED, Rate
from leakbench.report.cards import FactCard, cards
from leakbench.report.columns import PICKED, SUCCESS, VERDICT, distance_columns
from leakbench.report.epsilons import epsilons
from leakbench.report.finished import Finished
from leakbench.report.gallery import Gallery, Series, fitting, gallery_of, pointed, tiles, titled
from leakbench.report.page import Chart, PageLine, core_table, headlines, kind_of
from leakbench.report.render import render
from leakbench.report.several import flat, titles
from leakbench.report.words import number, training
from leakbench.summary.compare import moved

__all__ = ["levels_page", "noise_of"]

MEANS = "Attack success rate, share of victims identified and accuracy against the level of noise; the table has the values."


def _levels_figure(names: Sequence[str], panels: Mapping[str, Mapping[str, Sequence[float]]]) -> Markup:
    """Return a panel for each measure, with a line for each leakage point over the levels; values in [0, 1] or NaN."""
    with drawn(5.4, 0.9 + 1.35 * len(panels)) as figure:
        places = range(len(names))
        for axes, (measure, curves) in zip(
            figure.subplots(len(panels), 1, sharex=True, squeeze=False)[:, 0], panels.items(), strict=True
        ):
            for place, (name, values) in enumerate(curves.items()):
                # The axis names a lone curve; its colour differs from those of the leakage points.
                colour, dash = SERIES[place if len(curves) > 1 else 3], DASHES[place % len(DASHES)]
                axes.plot(places, values, dash, color=colour, marker="o", markersize=4, label=point_name(name))
            axes.set(ylim=(-0.04, 1.04), ylabel=measure)
        axes.set_xticks(places, names, rotation=30, ha="right", rotation_mode="anchor")
        figure.align_ylabels()
        handles, labels = figure.axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper center", ncols=2)
        return inline(figure, "levels-curve", MEANS)


SHOWN = (VERDICT, SUCCESS, PICKED)
"""Columns of the table of all levels after the leakage point; the distance, accuracy and epsilon follow."""

ALIKE_ENOUGH = ("device", "engine", "lpips", "taps")
"""Settings that may differ between levels; leakage points that some levels lack are left out."""


@dataclass(frozen=True)
class Level:
    """One level of noise: its run, its name, its noise multiplier (0 without noise), and the texts of its part of the page."""

    run: Finished
    name: str
    noise: float
    headlines: list[PageLine]
    cards: list[FactCard]
    headings: list[tuple[str, str]]
    lines: list[list[str]]


def levels_page(runs: Sequence[Finished]) -> str:
    """Return the page of three runs or more that `read_several` has read.

    Raises:
        InputError: If they are not levels of noise of one cell.
    """
    levels = _ordered(runs)
    # Only leakage points that all levels have; the level with the fewest names them.
    first = min((level.run for level in levels), key=lambda run: len(run.summary.taps))
    cell = first.manifest["cell"]
    defense = next(level.run.manifest["cell"]["defense"] for level in reversed(levels)).partition(" (")[0]
    taps = [name for name in first.summary.taps if all(name in level.run.summary.taps for level in levels)]
    headings, lines = _all_levels(levels, taps)
    return render(
        "levels.html.jinja",
        attack=cell["attack"],
        dataset=cell["dataset"],
        defense=defense,
        change=_change(levels, taps),
        levels=levels,
        names=json.dumps([level.name for level in levels]),
        headings=headings,
        lines=lines,
        galleries=_galleries(levels),
        charts=[
            Chart("By level", _figure(levels, taps), "From the least noise to the most. The levels are equally spaced.")
        ],
        training=training(first.summary).split(" | ")[1:],
    )


def _change(levels: Sequence[Level], taps: Sequence[str]) -> str:
    """Return in one sentence how leakage and accuracy change from the least noise to the most."""
    least, most = levels[0], levels[-1]
    parts = []
    for rate in (ASR, IDENTIFIED):
        at = [(name, *(level.run.summary.taps[name].value(rate.name) for level in (least, most))) for name in taps]
        known = [(name, a, b) for name, a, b in at if a is not None and b is not None]
        if known:
            name, a, b = max(known, key=lambda found: abs(found[2] - found[1]))
            parts.append(f"{rate.words} at the {point_name(name)} {moved(a, b)}")
    before, after = (level.run.summary.accuracy for level in (least, most))
    if before is not None and after is not None:
        parts.append(f"accuracy {moved(before, after, 3)}")
    subject = f"From {least.name} to {most.name}"
    return f"{subject}: {', '.join(parts)}." if parts else f"{subject}: the two runs have no measure in common."


def _all_levels(levels: Sequence[Level], taps: Sequence[str]) -> tuple[list[tuple[str, str]], list[list[str]]]:
    """Return (headings with their kind, lines) of the table of all levels."""
    shown = (*SHOWN, *distance_columns([level.run.summary for level in levels]))
    headings = [
        ("level", ""),
        ("noise multiplier", "number"),
        ("leakage point", "fixed"),
        *((column.heading, kind_of(column)) for column in shown),
        ("accuracy", "number"),
        ("valid epsilon", "number"),
    ]
    lines = []
    for level in levels:
        _, observed = epsilons(level.run.summary)
        valid = observed[0].valid if observed else "n/a"
        for name in taps:
            tap = level.run.summary.taps[name]
            texts = [column.text(tap) for column in shown]
            accuracy = number(level.run.summary.accuracy, 3)
            lines.append([level.name, f"{level.noise:g}", point_name(name), *texts, accuracy, valid])
    return headings, lines


def _ordered(runs: Sequence[Finished]) -> list[Level]:
    """Return the levels from the least noise to the most.

    Raises:
        InputError: If runs differ in more than their noise, or have the same noise.
    """
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
                f"report: {str(first.folder)!r} and {str(run.folder)!r} differ in {', '.join(other)}; three or"
                " more runs must be noise levels of one cell"
            )
        recipe = run.manifest["recipes"]["defense"]
        if noise_of(recipe) and _quiet(recipe) != _quiet(base.manifest["recipes"]["defense"]):
            names = [repr(r.manifest["cell"]["defense"]) for r in (base, run)]
            raise InputError(
                f"report: the defenses {names[0]} and {names[1]} differ in more than their noise; three or more runs"
                " must be noise levels of one cell"
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
    """Return the largest noise multiplier of a described defense's transforms, 0 if none adds noise.

    For a multiplier that changes over the rounds, this is the largest number in it times its factors.
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
    """Return the parts of a defense without the strength of their noise and without its texts."""
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
    """Return the names of the levels: the factor in the defense's name if it has one."""
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
    # The unchanged recipe among its multiples is its own multiple by 1.
    names = ["noise × 1" if name in bases else name for name in names]
    return names if len(set(names)) == len(names) else titles(runs)


def _level(run: Finished, name: str) -> Level:
    headings, lines = core_table(run.summary)
    noise = noise_of(run.manifest["recipes"]["defense"])
    return Level(run, name, noise, headlines(run.summary), cards(run.summary, None), headings, lines)


def _galleries(levels: Sequence[Level]) -> list[Gallery]:
    fewest = min((level.run for level in levels), key=lambda run: len(run.arrays))
    groups = list(pointed(fewest.arrays, fewest.rows))
    answers = [
        {(leak, one.heading): one for leak, group in pointed(level.run.arrays, level.run.rows) for one in group[1:]}
        for level in levels
    ]
    shapes = [one.examples.shape for _, (truth, *rest) in groups for one in (truth, *rest * len(levels))]
    victims, members = fitting(shapes)
    several = len({leak for leak, _ in groups}) > 1
    return [_gallery(leak, several, group, answers, levels, victims, members) for leak, group in groups]


def _gallery(
    leak: int,
    several: bool,
    group: Sequence[Series],
    answers: Sequence[Mapping[tuple[int, str], Series]],
    levels: Sequence[Level],
    victims: int,
    members: int,
) -> Gallery:
    """Return the gallery of one round: the original, which is the same at each level, and a stack of reconstructions."""
    truth, *rest = group
    rows = [[[[tile] for tile in victim] for victim in tiles(truth, victims, members)]]
    kept = [one for one in rest if all((leak, one.heading) in of_level for of_level in answers)]
    for one in kept:
        each = [
            tiles(of_level[leak, one.heading], victims, members, f"{one.heading}, {level.name}")
            for of_level, level in zip(answers, levels, strict=True)
        ]
        # (level, victim, member) -> (victim, member, level)
        rows.append([[list(tile) for tile in zip(*victim, strict=True)] for victim in zip(*each, strict=True)])
    title = titled(kept, leak if several else None)
    return gallery_of(title, [truth, *kept], rows, members)


def _figure(levels: Sequence[Level], taps: Sequence[str]) -> Markup:
    def curve(rate: Rate) -> dict[str, list[float]]:
        return {tap: [_value(level.run.summary.taps[tap].value(rate.name)) for level in levels] for tap in taps}

    accuracy = {"accuracy": [_value(level.run.summary.accuracy) for level in levels]}
    names = [f"{level.name.removeprefix('noise ')}" for level in levels]
    return _levels_figure(names, {rate.heading: curve(rate) for rate in (ASR, IDENTIFIED)} | {"accuracy": accuracy})


def _value(value: float | None) -> float:
    return math.nan if value is None else float(value)
