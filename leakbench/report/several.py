"""Several finished runs on the same victims, read and checked before a page shows them together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from leakbench.core.errors import InputError
from leakbench.report.finished import Finished, read_finished
from leakbench.summary.compare import check_same

__all__ = ["changed", "check_once", "flat", "read_several", "settings_of", "titles"]

MOST = 24
"""Largest number of runs on one page, so that it stays below 5 MB."""


def read_several(folders: Sequence[Path], redact: bool = False) -> list[Finished]:
    """Return the runs in the folders, in their order.

    Args:
        folders: Run folders.
        redact: Whether to leave the pictures out.

    Raises:
        InputError: If a run is not finished or is there twice, or if the runs differ in data set, victims or leakage points.
    """
    if len(folders) > MOST:
        raise InputError(f"report: got {len(folders)} runs, expected at most {MOST} on one page")
    runs = [read_finished(folder, redact) for folder in folders]
    first = runs[0]
    check_once(runs)
    for run in runs:
        mine, theirs = (r.manifest["cell"]["dataset"] for r in (first, run))
        if mine != theirs:
            raise InputError(
                f"report: the runs are of the data sets {mine!r} and {theirs!r}; expected the same in all of them"
            )
        _check_victims(first, run)
    return runs


def check_once(runs: Sequence[Finished]) -> None:
    """Raise InputError where a run is there twice."""
    for place, run in enumerate(runs):
        for other in runs[:place]:
            alike = all(run.manifest["files"].get(n) == s for n, s in other.manifest["files"].items() if "parquet" in n)
            if run.manifest["hash"] == other.manifest["hash"] and alike:
                raise InputError(
                    f"report: {str(other.folder)!r} and {str(run.folder)!r} are the same run; give each once"
                )


def _check_victims(first: Finished, other: Finished) -> None:
    mine, theirs = first.points(), other.points()
    shared = [name for name in mine if name in theirs]
    if not shared:
        raise InputError(
            f"report: {str(first.folder)!r} and {str(other.folder)!r} have no leakage point at the same round in common"
        )
    for name in shared:
        check_same(name, mine[name], theirs[name])


def titles(runs: Sequence[Finished]) -> list[str]:
    """Return a unique title for each run: the defense if they differ, else the attack, both, or the folder."""
    defenses, attacks = (
        [str(run.manifest["cell"][kind]).replace(" x ", " × ") for run in runs] for kind in ("defense", "attack")
    )
    defenses = ["no defense" if name == "none" else name for name in defenses]
    for names in (defenses, attacks, [f"{a} on {d}" for a, d in zip(attacks, defenses, strict=True)]):
        if len(set(names)) == len(runs):
            return names
    folders = [run.folder.resolve().name for run in runs]
    return folders if len(set(folders)) == len(runs) else [str(run.folder) for run in runs]


def changed(one: Finished, other: Finished) -> list[tuple[str, str, str]]:
    """Return [(setting, value in the first run, value in the second)] of the settings and recipes that differ."""
    sides = [dict(flat(_said(run))) for run in (one, other)]
    names = dict.fromkeys([*sides[0], *sides[1]])
    return [
        (name, _written(sides[0].get(name)), _written(sides[1].get(name)))
        for name in names
        if sides[0].get(name) != sides[1].get(name)
    ]


def settings_of(run: Finished) -> dict[str, str]:
    """Return {setting or recipe: its value in words} of a run."""
    return {name: _written(value) for name, value in flat(_said(run))}


def _written(value: Any) -> str:
    return "none" if value is None else ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _said(run: Finished) -> dict[str, Any]:
    return {**run.manifest["cell"], **run.manifest["settings"]}


def flat(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (dotted name, value) of each leaf of nested plain data."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from flat(inner, f"{name}.{key}" if name else str(key))
    elif isinstance(value, list) and any(isinstance(inner, dict | list) for inner in value):
        for place, inner in enumerate(value):
            yield from flat(inner, f"{name}.{place}")
    else:
        yield name, value
