"""The page of two runs on the same victims: what changed, both verdicts, and the reconstructions side by side."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from leakbench.auditing.verdict import Audit
from leakbench.core.leakage_points import point_name
from leakbench.measure.rates import ASR, EXACT, ROUGE_1
from leakbench.report.audited import audit_of
from leakbench.report.cards import FactCard, cards
from leakbench.report.columns import COUNTS, page_columns
from leakbench.report.figures import threshold_figure
from leakbench.report.finished import Finished
from leakbench.report.gallery import Gallery, Series, fitting, pointed, shown_together, titled
from leakbench.report.page import Chart, PageLine, below_thresholds, headlines
from leakbench.report.render import render
from leakbench.report.several import changed, titles
from leakbench.storage.summary import Summary
from leakbench.summary.compare import DIFFERS, ENOUGH, ERRORS, Difference, differences, differs, digits_of, sentence

__all__ = ["compared_page"]


MEASURES = {rate.name: rate.heading for rate in (ASR, EXACT, ROUGE_1)} | {
    name: measure.heading for name, measure in ERRORS.items()
}
"""{measure: its name on the page}; another's underscores become spaces."""


@dataclass(frozen=True)
class _RunSide:
    """One of the two runs."""

    title: str
    headlines: list[PageLine]
    cards: list[FactCard]
    summary: Summary
    command: str
    hash: str


def compared_page(one: Finished, other: Finished) -> str:
    """Return the page of two runs that `read_several` has read."""
    names = titles([one, other])
    sides = [_side(run, name) for run, name in zip((one, other), names, strict=True)]
    first, second = ((run.rows, str(run.manifest["cell"]["dataset"])) for run in (one, other))
    found = differences(first, second, (names[0], names[1]))
    mine, theirs = one.points(), other.points()
    shared = [name for name in mine if name in theirs]
    points = [(side, name, tap) for name in shared for side in sides for tap in [side.summary.taps[name]]]
    figures = [
        (
            name,
            threshold_figure({names[0]: mine[name], names[1]: theirs[name]}, name=f"threshold-{place}"),
        )
        for place, name in enumerate(shared)
    ]
    return render(
        "compare.html.jinja",
        sides=sides,
        dataset=one.manifest["cell"]["dataset"],
        change=_change(found, names, sides),
        difference_headings=[
            ("leakage point", ""),
            ("measure", ""),
            (names[0], "number"),
            (names[1], "number"),
            ("change", "number"),
            ("", "differs"),
        ],
        differences=[_line(difference) for difference in found],
        evidence=[_evidence(difference) for difference in found],
        enough=ENOUGH,
        alone=[point_name(name) for name in (*mine, *theirs) if (name in mine) != (name in theirs)],
        changed=changed(one, other),
        points=[f"{point_name(name)}, {side.title}" for side, name, _ in points],
        measures=_measures(sides, [tap for _, _, tap in points]),
        galleries=_galleries(one, other, names),
        charts=[
            Chart(point_name(name), figure, below_thresholds(one.rows))
            for name, figure in figures
            if figure is not None
        ],
    )


def _side(run: Finished, title: str) -> _RunSide:
    summary, audit = run.summary, audit_of(run.folder, run.manifest)
    manifest = run.manifest
    return _RunSide(
        title, headlines(summary, audit), _costs(summary, audit), summary, manifest["command"], manifest["hash"]
    )


def _costs(summary: Summary, audit: Audit | None) -> list[FactCard]:
    """Return the cards of accuracy and epsilon; the other facts are the same in both runs or among the settings that differ."""
    return [card for card in cards(summary, audit) if card.label == "Accuracy" or card.label.endswith("epsilon")]


def _named(measure: str) -> str:
    return MEASURES.get(measure, measure.replace("_", " "))


def _line(d: Difference) -> list[str]:
    digits = digits_of(d)
    numbers = [f"{d.first:.{digits}f}", f"{d.second:.{digits}f}", f"{d.change[0]:+.{digits}f}"]
    return [point_name(d.point), _named(d.measure), *numbers, DIFFERS if differs(d) else ""]


def _evidence(d: Difference) -> list[str]:
    return [point_name(d.point), _named(d.measure), str(d.victims), str(d.networks), _interval(d), f"{d.sign:.3f}"]


def _interval(d: Difference) -> str:
    """Return the 95 % interval of the second run minus the first."""
    _, low, high = (f"{value:+.{digits_of(d)}f}" for value in d.change)
    return f"[{low}, {high}]"


def _change(found: list[Difference], names: list[str], sides: list[_RunSide]) -> str:
    """Return the sentence of `leakbench compare`, with the names of both runs."""
    before, after = (side.summary.accuracy for side in sides)
    text = sentence(found, (before, after))
    return f"From {names[0]} to {names[1]}: {text[0].lower()}{text[1:]}"


def _measures(sides: list[_RunSide], taps: list[Any]) -> list[list[str]]:
    """Return a line for each measure that one of the runs has at one leakage point."""
    found = {column.heading: column for side in sides for column in (*page_columns(side.summary), *COUNTS)}
    lines = [[column.heading, *(column.text(tap) for tap in taps)] for column in found.values()]
    return [line for line in lines if set(line[1:]) != {"n/a"}]


def _galleries(one: Finished, other: Finished, names: list[str]) -> list[Gallery]:
    """Return a gallery for each leakage point that both runs have: the original, then both reconstructions."""
    mine, theirs = (list(pointed(run.arrays, run.rows)) for run in (one, other))
    answers = {(leak, series.heading): series for leak, group in theirs for series in group[1:]}
    several = len({leak for leak, _ in mine}) > 1
    groups: list[tuple[str, list[Series]]] = []
    for leak, (truth, *rest) in mine:
        for series in rest:
            if (match := answers.get((leak, series.heading))) is not None:
                both = [
                    replace(run, heading=f"{series.heading}, {name}", label=name)
                    for run, name in ((series, names[0]), (match, names[1]))
                ]
                groups.append((titled([series], leak if several else None), [truth, *both]))
    victims, members = fitting([series.examples.shape for _, group in groups for series in group])
    return [shown_together(title, group, victims, members) for title, group in groups]
