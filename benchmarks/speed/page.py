"""The page of a bench: bench.md for people, bench.json for machines."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

from benchmarks.speed.bench import AIMED, NONE, Bench
from benchmarks.speed.figure import Figure, figure_of
from benchmarks.speed.machine import machine
from leakbench.box import box_of
from leakbench.core.errors import InputError
from leakbench.core.scripts import markdown_table
from leakbench.storage.atomic import write_text

__all__ = ["check_page", "page", "write_page"]


ALIKE = ("cpu", "cores", "threads", "versions")
"""Fields of the machine that all figures on one page share."""

LEGEND = (
    "`minimum`, `median` and `maximum` are over the repeats. `times` is the reference's time divided by leakbench's if more is",
    "better (aim `>=`), and the inverse if less is better (`<=`). `share` is the part of the arithmetic's ceiling.",
)


def check_page(folder: Path, quick: bool) -> None:
    """Raise InputError if the folder's bench.json is of another machine or scale, or is not a bench.json.

    A trial, or figures of another machine, must not overwrite published figures.
    """
    read = _read(folder / "bench.json")
    if read is None:
        return
    here = machine(None).as_dict()
    other = [name for name in ALIKE if here[name] != read["machine"].get(name)]
    if read["quick"] != quick:
        other = ["scale (--quick or not)", *other]
    if other:
        raise InputError(
            f"page: {folder / 'bench.json'} is of another {', '.join(other)}; give another folder, or remove it"
        )


def write_page(found: Bench, folder: Path) -> None:
    """Write FOLDER/bench.md and FOLDER/bench.json; figures that were not measured now are kept (`check_page`)."""
    found = _with_those_before(found, _read(folder / "bench.json"))
    text = json.dumps(found.as_dict(), indent=1) + "\n"
    write_text(folder / "bench.json", text)
    write_text(folder / "bench.md", page(found))


def _read(path: Path) -> dict[str, Any] | None:
    """Return the content of a bench.json, None if it does not exist; raises InputError for another file."""
    if not path.is_file():
        return None
    try:
        read = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        read = None
    if not isinstance(read, dict) or not {"machine", "quick", "figures"} <= set(read):
        raise InputError(f"page: {path} was not written by `python -m benchmarks`; give another folder, or remove it")
    return read


def _with_those_before(found: Bench, read: dict[str, Any] | None) -> Bench:
    """Return a bench with the earlier figures that have no values now."""
    before = {key: figure_of(figure) for key, figure in (read or {"figures": {}})["figures"].items() if figure}
    now = {key: figure for key, figure in found.figures.items() if figure.values or key not in before}
    figures = {key: now.get(key, before.get(key)) for key in AIMED}
    return dataclasses.replace(found, figures={key: figure for key, figure in figures.items() if figure is not None})


def _commands(found: Bench) -> list[str]:
    """Return a line for each command that measured figures."""
    by: dict[str, list[str]] = {}
    for key, figure in found.figures.items():
        by.setdefault(figure.command or found.command, []).append(f"`{key}`")
    if len(by) == 1:
        return [f"Measured by `{next(iter(by))}`; the same numbers are in bench.json."]
    each = [f"- `{command}`: {', '.join(keys)}" for command, keys in by.items()]
    said = "Measured on one machine, at several times and states of the code; load and versions are of the last."
    return [f"{said} The same numbers are in bench.json:", "", *each, ""]


def _box(found: Bench, measured: dict[str, Figure]) -> list[str]:
    """Return the box at the top of the page."""
    aimed = [key for key in measured if AIMED[key][0] != NONE]
    reached = [key for key in aimed if _reaches(measured[key].median, AIMED[key][0])]
    missed = ", ".join(f"`{key}`" for key in aimed if key not in reached)
    m = found.machine
    return box_of(
        "leakbench is as fast as its aims, each a ratio to a reference that does the same work.",
        f"{len(reached)} of {len(aimed)} aims are reached by the median.{f' Missed: {missed}.' if missed else ''}",
        f"{len(measured)} figures with {_spread(measured)} repeats each, on {m.cores} cores.",
        "The aims are for two idle cores." + "".join(f" {text[0].upper()}{text[1:]}." for text in m.warnings()),
        found.command,
    )


def _reaches(value: float, aim: str) -> bool:
    """Return whether a value satisfies an aim such as `>= 15`."""
    sign, limit = aim.split()
    return value >= float(limit) if sign == ">=" else value <= float(limit)


def _spread(measured: dict[str, Figure]) -> str:
    """Return the smallest and the largest number of repeats."""
    many = sorted({len(figure.values) for figure in measured.values()})
    return " to ".join(map(str, dict.fromkeys((many[0], many[-1])))) if many else "no"


def page(found: Bench) -> str:
    """Return the page: the figures, their aims and parts, and the machine."""
    m = found.machine
    measured = {key: figure for key, figure in found.figures.items() if figure.values}
    figures = [
        (
            f"`{key}`",
            *(f"{v:.4g}" for v in (f.minimum, f.median, f.maximum)),
            f.unit,
            AIMED[key][0],
            len(f.values),
            f.said,
        )
        for key, f in measured.items()
    ]
    parts = [(f"`{key}`", name, f"{value:.4g}") for key, f in found.figures.items() for name, value in f.parts.items()]
    heads = ("key", "minimum", "median", "maximum", "unit", "aim", "repeats", "what")
    loads = ", ".join("unknown" if x is None else f"{x:.1f}" for x in (m.load_before, m.load_after))
    packages = ", ".join(f"{name} {version}" for name, version in m.versions.items())
    lines = [
        "# How fast",
        "",
        *_box(found, measured),
        *_commands(found),
        f"On {m.cpu}, {m.cores} cores; PyTorch with {m.threads} threads, the references with as many and with one.",
        f"Load average before and after: {loads}.",
        f"Versions: {packages}.",
        "",
        *(f"**Warning: {text}.**" for text in m.warnings()),
        *(["**A trial (`--quick`): less of each work than in published figures.**"] if found.quick else []),
        "",
        "The reference and leakbench take turns in one process (Flower's engine needs its own). Times are wall time. Each ratio",
        "is of one repeat. The aims are for two idle cores.",
        "",
        *LEGEND,
        "",
        markdown_table(heads, figures),
        "",
        *(f"- `{key}`: not measured: {f.reason}" for key, f in found.figures.items() if not f.values),
        "",
        "Parts of each figure, medians over the repeats:",
        "",
        markdown_table(("key", "part", "value"), parts),
    ]
    return "\n".join(lines) + "\n"
