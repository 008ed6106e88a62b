"""The page of a bench: bench.md for people, bench.json for machines."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

from leakbench.bench.bench import AIMS, Bench
from leakbench.bench.figure import figure_of
from leakbench.bench.machine import machine
from leakbench.errors import InputError
from leakbench.scripts import markdown_table
from leakbench.store import write_atomically

__all__ = ["check_page", "page", "write_page"]


ALIKE = ("cpu", "cores", "threads", "versions")
"""Of a machine, what figures on one page have in common."""

LEGEND = (
    "`minimum`, `median` and `maximum` are over the repeats. `times` is the reference's time over ours where more is better",
    "(aim `>=`), ours over the reference's where less is (`<=`); `share` is of the arithmetic's ceiling.",
)


def check_page(folder: Path, quick: bool) -> None:
    """Raise InputError where a bench.json that stands in the folder is of another kind, or no bench.json.

    So a trial never takes the place of published figures, nor do figures of another machine.
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
    """Write FOLDER/bench.md and FOLDER/bench.json; figures that stand there and were not measured now stay (`check_page`)."""
    found = _with_those_before(found, _read(folder / "bench.json"))
    text = json.dumps(found.as_dict(), indent=1) + "\n"
    write_atomically(folder / "bench.json", lambda path: path.write_text(text, encoding="utf-8"))
    write_atomically(folder / "bench.md", lambda path: path.write_text(page(found), encoding="utf-8"))


def _read(path: Path) -> dict[str, Any] | None:
    """Return what a bench.json holds, None where there is none; raises InputError for another file."""
    if not path.is_file():
        return None
    try:
        read = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        read = None
    if not isinstance(read, dict) or not {"machine", "quick", "figures"} <= set(read):
        raise InputError(f"page: {path} was written by no bench; give another folder, or remove it")
    return read


def _with_those_before(found: Bench, read: dict[str, Any] | None) -> Bench:
    """Return a bench with the figures of one before that have no values now."""
    before = {key: figure_of(figure) for key, figure in (read or {"figures": {}})["figures"].items() if figure}
    now = {key: figure for key, figure in found.figures.items() if figure.values or key not in before}
    figures = {key: now.get(key, before.get(key)) for key in AIMS}
    return dataclasses.replace(found, figures={key: figure for key, figure in figures.items() if figure is not None})


def _commands(found: Bench) -> list[str]:
    """Return a line for each command by which the figures were measured."""
    by: dict[str, list[str]] = {}
    for key, figure in found.figures.items():
        by.setdefault(figure.command or found.command, []).append(f"`{key}`")
    if len(by) == 1:
        return [f"Measured by `{next(iter(by))}`; the same numbers are in bench.json."]
    each = [f"- `{command}`: {', '.join(keys)}" for command, keys in by.items()]
    said = "Measured on one machine, at several times and states of the code, of which load and versions are the last;"
    return [f"{said} the same in bench.json:", "", *each, ""]


def page(found: Bench) -> str:
    """Return the page: the figures, what each holds against what, what it is made of, and the machine."""
    m = found.machine
    measured = {key: figure for key, figure in found.figures.items() if figure.values}
    figures = [
        (f"`{key}`", *(f"{v:.4g}" for v in (f.minimum, f.median, f.maximum)), f.unit, AIMS[key], len(f.values), f.said)
        for key, f in measured.items()
    ]
    parts = [(f"`{key}`", name, f"{value:.4g}") for key, f in measured.items() for name, value in f.parts.items()]
    heads = ("key", "minimum", "median", "maximum", "unit", "aim", "repeats", "what")
    loads = ", ".join("unknown" if x is None else f"{x:.1f}" for x in (m.load_before, m.load_after))
    packages = ", ".join(f"{name} {version}" for name, version in m.versions.items())
    lines = [
        "# How fast",
        "",
        *_commands(found),
        f"On {m.cpu}, {m.cores} cores; PyTorch with {m.threads} threads, the references with as many and with one.",
        f"Load average before and after: {loads}.",
        f"Versions: {packages}.",
        "",
        *(f"**Warning: {text}.**" for text in m.warnings()),
        *(["**A trial (`--quick`): less of each work than in published figures.**"] if found.quick else []),
        "",
        "Reference and ours take turns in one process (Flower's engine needs its own); times are wall time, ratios are of one",
        "repeat each. The aims are for two idle cores.",
        "",
        *LEGEND,
        "",
        markdown_table(heads, figures),
        "",
        *(f"- `{key}`: not measured: {f.reason}" for key, f in found.figures.items() if not f.values),
        "",
        "What they are made of, medians over the repeats:",
        "",
        markdown_table(("key", "part", "value"), parts),
    ]
    return "\n".join(lines) + "\n"
