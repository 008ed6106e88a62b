"""All figures by key, with their aims, and their measurement one after another."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.speed.attack import attack_floor_ratio, attack_speedup, seconds_to_eta
from benchmarks.speed.costs import evaluation_ms
from benchmarks.speed.figure import Figure
from benchmarks.speed.machine import Machine, load, machine
from benchmarks.speed.private import alpha_over_dp, dp_over_nonprivate, dp_vs_opacus, flat_over_nonprivate
from benchmarks.speed.rounds import flop_efficiency, peak_memory_mb, round_vs_flower, round_vs_plain
from benchmarks.speed.searches import lmmse_fit_seconds, ranking_seconds, whitened_seconds_per_victim
from benchmarks.speed.size import FULL, QUICK, Size
from leakbench.core.errors import InputError, nearest
from leakbench.core.recipe import resolve
from leakbench.core.request import at_least
from leakbench.data.recipe import DatasetRecipe

__all__ = ["AIMED", "KEYS", "Bench", "bench"]

NONE = "none"
"""In place of an aim, for a figure without one."""

AIMED: dict[str, tuple[str, Callable[..., Figure]]] = {
    "attack_speedup": (">= 15", attack_speedup),
    "attack_floor_ratio": ("<= 4", attack_floor_ratio),
    "dp_over_nonprivate": ("<= 1.25", dp_over_nonprivate),
    "alpha_over_dp": ("<= 1.05", alpha_over_dp),
    "flat_over_nonprivate": ("<= 1.6", flat_over_nonprivate),
    "dp_vs_opacus": (">= 4", dp_vs_opacus),
    "round_vs_plain": (">= 1.8", round_vs_plain),
    "round_vs_flower": (">= 10", round_vs_flower),
    "flop_efficiency": (">= 0.4", flop_efficiency),
    "peak_memory_mb": ("<= 2048", peak_memory_mb),
    "whitened_seconds_per_victim": ("<= 0.25", whitened_seconds_per_victim),
    "ranking_seconds": ("<= 5", ranking_seconds),
    "lmmse_fit_seconds": ("<= 5", lmmse_fit_seconds),
    "seconds_to_eta": (NONE, seconds_to_eta),
    "evaluation_ms": (NONE, evaluation_ms),
}
"""{key: (its aim on two cores, its measurement)}. Those in `ATTACKS` take a size, a data set and its folder; others a size."""

KEYS = tuple(AIMED)

DATASET = "faces"
"""Default data set of the victims, the embedded one with faces."""

ATTACKS = ("attack_speedup", "attack_floor_ratio", "seconds_to_eta")

USED = {"outer": ("attack_speedup",), "dataset": ATTACKS, "data-dir": ATTACKS}
"""{option: the keys that it changes}."""


@dataclass(frozen=True)
class Bench:
    """The figures of the requested keys."""

    figures: dict[str, Figure]
    machine: Machine
    quick: bool
    command: str

    def as_dict(self) -> dict[str, Any]:
        """Return the data for JSON; `figures` has null for a key without a figure, for the reason in `missing`."""
        return {
            "command": self.command,
            "quick": self.quick,
            "machine": self.machine.as_dict(),
            "warnings": list(self.machine.warnings()),
            "figures": {key: figure.as_dict() for key, figure in self.figures.items()},
            "missing": {key: figure.reason for key, figure in self.figures.items() if not figure.values},
        }

    def lines(self) -> list[str]:
        """Return the text for users."""
        return [*_table(self), "", *_about(self)]


def bench(
    only: tuple[str, ...],
    quick: bool,
    repeats: int | None,
    outer: int | None,
    dataset: str | None,
    data_dir: Path | None,
    command: str,
    tell: Callable[[str, float, int | None], None],
) -> Bench:
    """Measure the keys in `only`, or all if it is empty; raises InputError for an unknown key or data set."""
    for key in only:
        if key not in KEYS:
            raise InputError(f"only: unknown key {key!r}{nearest(key, KEYS)}")
    chosen = [key for key in KEYS if not only or key in only]
    if dataset is not None:
        resolve("datasets", DatasetRecipe, dataset)
    _check_used(chosen, {"outer": outer, "dataset": dataset, "data-dir": data_dir})
    size, before = _size(quick, repeats, outer), load()
    victims = (DATASET if dataset is None else dataset, data_dir)
    figures = {}
    for number, key in enumerate(chosen):
        tell(f"bench, {key}", number, len(chosen))
        figures[key] = dataclasses.replace(AIMED[key][1](size, *(victims if key in ATTACKS else ())), command=command)
    tell("bench", len(chosen), len(chosen))
    return Bench(figures, machine(before), quick, command)


def _check_used(chosen: list[str], given: dict[str, Any]) -> None:
    """Raise InputError for an option that changes none of the measured keys."""
    for option, value in given.items():
        if value is not None and not set(USED[option]) & set(chosen):
            keys = " and ".join(", ".join(USED[option]).rsplit(", ", 1))
            raise InputError(f"{option}: got {value}, which only {keys} would use, and --only leaves that out")


def _size(quick: bool, repeats: int | None, outer: int | None) -> Size:
    size = QUICK if quick else FULL
    if repeats is not None:
        often = at_least("repeats", repeats, 1)
        size = dataclasses.replace(size, repeats=often, rarely=often, turns=often)
    return size if outer is None else dataclasses.replace(size, outer=at_least("outer", outer, 1))


def _table(found: Bench) -> list[str]:
    lines = [f"{'key':<29}{'minimum':>10}{'median':>10}{'maximum':>10}  {'unit':<7}aim on two idle cores"]
    for key, figure in found.figures.items():
        if figure.values:
            three = "".join(f"{value:>10.4g}" for value in (figure.minimum, figure.median, figure.maximum))
            lines.append(f"{key:<29}{three}  {figure.unit:<7}{AIMED[key][0]}")
        else:
            lines.append(f"{key:<29}{'null':>10}  {figure.reason}")
    return lines


def _parts(key: str, figure: Figure) -> list[str]:
    """Return the comparison of a figure and its parts."""
    return [f"{key}: {figure.said}", *(f"    {value:<10.4g}{name}" for name, value in figure.parts.items())]


def _about(found: Bench) -> list[str]:
    m = found.machine
    loads = ", ".join("unknown" if x is None else f"{x:.1f}" for x in (m.load_before, m.load_after))
    warnings = [f"warning: {text}" for text in m.warnings()]
    about = f"{m.cpu}, {m.cores} cores, {m.threads} threads, torch {m.versions['torch']}; load before, after: {loads}"
    parts = [line for key, figure in found.figures.items() if figure.said for line in _parts(key, figure)]
    less = ["--quick does less of each work, for which ratios are smaller: the aims are for the command without it"]
    return [about, *warnings, *(less if found.quick else []), *parts]
