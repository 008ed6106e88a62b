"""The page of two runs on the same victims: both verdicts, what differs and by how much, and what either rebuilt."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pandas as pd
from markupsafe import Markup

from leakbench.report.columns import columns
from leakbench.report.epsilons import epsilons
from leakbench.report.figures import threshold_figure
from leakbench.report.finished import Finished
from leakbench.report.gallery import Gallery, Series, fitting, pointed, shown_together
from leakbench.report.render import render
from leakbench.report.several import changed, titles
from leakbench.report.words import reading, training
from leakbench.summary.compare import DIFFERS, NOTES, Difference, differences, differs, digits_of

__all__ = ["compared_page"]


MEASURES = {"asr": "ASR", "rmse": "RMSE"}


@dataclass(frozen=True)
class _Side:
    """What is said of one of the two."""

    title: str
    reading: str
    training: list[str]
    summary: dict[str, Any]
    claimed: str
    valid: str
    command: str
    hash: str


def compared_page(one: Finished, other: Finished) -> str:
    """Return the page of two runs, which `read_several` has read."""
    names = titles([one, other])
    sides = [_side(run, name) for run, name in zip((one, other), names, strict=True)]
    first, second = ((run.rows, str(run.manifest["cell"]["dataset"])) for run in (one, other))
    found = differences(first, second, (names[0], names[1]))
    mine, theirs = one.points(), other.points()
    shared = [name for name in mine if name in theirs]
    return render(
        "compare.html.jinja",
        sides=sides,
        dataset=one.manifest["cell"]["dataset"],
        differences=[_line(difference) for difference in found],
        means=_clear(found, names),
        notes=" ".join(NOTES),
        alone=[name for name in (*mine, *theirs) if (name in mine) != (name in theirs)],
        changed=changed(one, other),
        columns=_columns(sides),
        galleries=_galleries(one, other, names),
        figures=[(name, _figure(place, name, mine[name], theirs[name], names)) for place, name in enumerate(shared)],
    )


def _side(run: Finished, title: str) -> _Side:
    claimed, observed = epsilons(run.summary)
    said = (reading(run.summary), training(run.summary).split(" | "), run.summary, claimed)
    valid = observed[0].text if observed else "n/a"
    return _Side(title, *said, valid, run.manifest["command"], run.manifest["hash"])


def _line(d: Difference) -> list[str]:
    digits = digits_of(d)
    interval = f"[{d.low:+.{digits}f}, {d.high:+.{digits}f}]"
    numbers = [
        f"{d.first:.{digits}f}",
        f"{d.second:.{digits}f}",
        f"{d.difference:+.{digits}f}",
        interval,
        f"{d.sign:.3f}",
    ]
    return [d.point, d.measure, str(d.victims), *numbers, DIFFERS if differs(d) else ""]


def _clear(found: list[Difference], names: list[str]) -> str:
    """Return in one sentence what differs."""
    clear = [d for d in found if differs(d)]
    if not clear:
        return f"On the same victims nothing that was compared differs between {names[0]} and {names[1]}."
    parts = [
        f"{MEASURES.get(d.measure, d.measure.replace('_', ' '))} at {d.point} "
        f"({d.first:.{digits_of(d)}f} and {d.second:.{digits_of(d)}f})"
        for d in clear
    ]
    return f"On the same victims {names[0]} and {names[1]} differ in {', '.join(parts)}."


def _columns(sides: list[_Side]) -> list[Any]:
    """Return the columns of the terminal's table that either run has."""
    found = {column.heading: column for side in sides for column in columns(side.summary)}
    return list(found.values())


def _galleries(one: Finished, other: Finished, names: list[str]) -> list[Gallery]:
    mine, theirs = (list(pointed(run.arrays, run.rows)) for run in (one, other))
    answers = {(leak, series.heading): series for leak, group in theirs for series in group[1:]}
    groups = []
    for leak, (truth, *rest) in mine:
        beside = [truth]
        for series in rest:
            if (match := answers.get((leak, series.heading))) is not None:
                for run, name in ((series, names[0]), (match, names[1])):
                    beside.append(Series(f"{series.heading}, {name}", run.examples, run.scores))
        if len(beside) > 1:
            groups.append((leak, beside))
    victims, members = fitting([series.examples.shape for _, group in groups for series in group])
    return [shown_together(leak, group, victims, members) for leak, group in groups]


def _figure(place: int, point: str, rows: pd.DataFrame, others: pd.DataFrame, names: list[str]) -> Markup | None:
    return threshold_figure({names[0]: rows, names[1]: others}, name=f"threshold-{place}")
