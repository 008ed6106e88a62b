"""The page of an attack on an external update: originals and reconstructions where the truth is known, and the assumptions."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
from safetensors.numpy import load_file

from leakbench.core.leakage_points import listed, point_name
from leakbench.data.words import words_in
from leakbench.report.cards import FactCard, evidence
from leakbench.report.columns import COUNTS, update_columns, with_values
from leakbench.report.figures import anytime_figure, threshold_figure
from leakbench.report.gallery import Arrays, Gallery, Series, fitting, galleries, shown_together, titled
from leakbench.report.page import EVALUATIONS, Chart, PageLine, below_thresholds, core_table, headlines, measures
from leakbench.report.render import render
from leakbench.report.rows import victims
from leakbench.storage.rows_file import read_rows
from leakbench.storage.store import AFTER, Run, finished_run, read_manifest, without_pictures, written
from leakbench.storage.summary import Summary

__all__ = ["OWN", "own_report_into", "write_own_report"]

OWN = "own update"
"""`kind` in the manifest of such a folder."""


def write_own_report(folder: Path, redact: bool = False) -> Path:
    """Write `report.html` into the folder of an attack; equal files give an equal page.

    Args:
        folder: Folder of `leakbench attack --out`.
        redact: Whether to leave the pictures out.

    Returns:
        Path of the page.

    Raises:
        InputError: If a file is missing or differs from what the attack wrote.
    """
    with finished_run(folder) as run:
        return own_report_into(run, redact)


def own_report_into(run: Run, redact: bool = False) -> Path:
    """Write `report.html` into the folder of an attack that this process has locked, as `write_own_report` does."""
    return run.write_text("report.html", _page(run.folder, redact))


def _page(folder: Path, redact: bool) -> str:
    manifest = read_manifest(folder)
    scored = "rows.parquet" in manifest["files"]
    rows = read_rows(written(folder, manifest, "rows.parquet")) if scored else pd.DataFrame()
    arrays: Arrays = load_file(written(folder, manifest, "reconstructions.safetensors"))
    arrays = without_pictures(arrays) if redact else arrays
    summary = Summary.of(manifest["summary"])
    taps = summary.taps
    points = {name: rows[rows["tap"] == name] for name in taps}
    columns = with_values((*update_columns(summary), *COUNTS), summary)
    core_headings, core_lines = core_table(summary)
    figures = (
        ("ASR against threshold", threshold_figure(points) if points else None, below_thresholds(rows)),
        ("ASR against work", anytime_figure(taps) if points else None, EVALUATIONS),
    )
    return render(
        "own.html.jinja",
        manifest=manifest,
        summary=summary,
        headlines=headlines(summary, external=True) if taps else _unscored_lines(summary, arrays),
        cards=[*evidence(taps.values()), *_distances(summary)],
        core_headings=core_headings,
        core_lines=core_lines,
        points=[point_name(name) for name in taps],
        columns=columns,
        measures=measures(columns, list(taps.values())),
        galleries=galleries(arrays, rows) if scored else _unscored(arrays),
        victims=victims({point_name(name): found for name, found in points.items()}),
        charts=[Chart(title, svg, caption) for title, svg, caption in figures if svg is not None],
        files={name: checksum for name, checksum in manifest["files"].items() if name not in AFTER},
    )


def _unscored_lines(summary: Summary, arrays: Arrays) -> list[PageLine]:
    """Return what the attack made of an update whose originals are unknown."""
    finite = {
        name.split(".")[0]: bool(np.isfinite(array).all(tuple(range(2, array.ndim))).any())
        for name, array in arrays.items()
        if name.endswith(".reconstruction")
    }
    places = sorted((place for place, answered in finite.items() if answered), reverse=True)
    if finite and not places:
        failed = f"ATTACK FAILED: the attack {summary.cell.attack} made no reconstruction."
        return [PageLine("", failed, ""), PageLine("", "It does not follow that nothing leaks.", "")]
    proven = summary.certified or {}
    if places and all(all(proven.get(place, [False])) for place in places):
        text = "RECONSTRUCTED, certified: the gradient of the sentences below equals the update."
        return [PageLine("", text, "reconstructs"), PageLine("", "No originals were given, so nothing is scored.", "")]
    what = "pictures" if words_in(arrays) is None else "sentences"
    where = f" from the {listed([point_name(place) for place in places])}" if places else ""
    return [
        PageLine("", f"The attack {summary.cell.attack} reconstructed the {what} below{where}.", ""),
        PageLine("", f"No originals were given, so nothing is scored. Compare the {what} with your data.", ""),
    ]


def _distances(summary: Summary) -> list[FactCard]:
    """Return a card of the attack's own distance at each leakage point: how well the reconstruction explains the leak."""
    cards = []
    for tap, values in (summary.distance or {}).items():
        known = [value for value in values if value is not None]
        if known:
            note = f"{point_name(tap)}, lowest of all victims; the attack's own measure, lower is better"
            cards.append(FactCard("Distance to the leak", f"{min(known):.3g}", note))
    return cards


def _unscored(arrays: Arrays) -> list[Gallery]:
    """Return the galleries of reconstructions without originals."""
    found = [
        Series(point_name(name.split(".")[0]), array, {}, words=words_in(arrays))
        for name, array in arrays.items()
        if name.endswith(".reconstruction")
    ]
    found.sort(key=lambda one: one.heading)
    return [shown_together(titled([one], None), [one], *fitting([one.examples.shape])) for one in found]
