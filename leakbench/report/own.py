"""The page of an attack on somebody's update: truth beside reconstruction where the truth is known, and what was assumed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
from safetensors.numpy import load_file

from leakbench.redacted import without_pictures
from leakbench.report.columns import COLUMNS
from leakbench.report.figures import anytime_figure, threshold_figure
from leakbench.report.gallery import Arrays, Gallery, Series, fitting, galleries, shown_together
from leakbench.report.render import render
from leakbench.report.rows import victims
from leakbench.report.words import number
from leakbench.rows_file import read_rows
from leakbench.store import AFTER, Run, finished_run, read_manifest, written

__all__ = ["OWN", "SHOWN", "own_report_into", "write_own_report"]

OWN = "own update"
"""What the manifest of such a folder calls itself, in `kind`."""

SHOWN = ("ASR [95% CI]", "baseline ASR", "RMSE", "baseline RMSE", "PSNR", "SSIM", "label acc.", "identified")
"""The columns of `leakbench run` that an update of one's own has."""


def write_own_report(folder: Path, redact: bool = False) -> Path:
    """Write `report.html` into the folder of an attack and return its path; equal files give an equal page.

    Raises InputError that names a file which is missing or is not what was written.
    """
    with finished_run(folder) as run:
        return own_report_into(run, redact)


def own_report_into(run: Run, redact: bool = False) -> Path:
    """Write `report.html` into the folder of an attack that this process holds, as `write_own_report` does."""
    return run.write_text("report.html", _page(run.folder, redact))


def _page(folder: Path, redact: bool) -> str:
    manifest = read_manifest(folder)
    scored = "rows.parquet" in manifest["files"]
    rows = read_rows(written(folder, manifest, "rows.parquet")) if scored else pd.DataFrame()
    arrays: Arrays = load_file(written(folder, manifest, "reconstructions.safetensors"))
    arrays = without_pictures(arrays) if redact else arrays
    summary = manifest["summary"]
    points = {name: rows[rows["tap"] == name] for name in summary["taps"]}
    return render(
        "own.html.jinja",
        manifest=manifest,
        summary=summary,
        reading=_reading(summary),
        columns=[column for column in COLUMNS if column.heading in SHOWN],
        galleries=galleries(arrays, rows) if scored else _unscored(arrays),
        victims=victims(points),
        threshold_figure=threshold_figure(points) if points else None,
        anytime_figure=anytime_figure(summary["taps"]) if points else None,
        files={name: checksum for name, checksum in manifest["files"].items() if name not in AFTER},
    )


def _reading(summary: dict[str, Any]) -> str:
    """Return in a sentence what came of it."""
    cell = summary["cell"]
    if not summary["taps"]:
        return f"What {cell['attack']} makes of the update. No truth was given, so that nothing is scored: look at the pictures."
    said = (
        f"{name}: ASR {number(tap['asr'])}, baseline guess {number(tap['null_asr'])}"
        for name, tap in summary["taps"].items()
    )
    return f"What {cell['attack']} makes of the update, at {'; '.join(said)}."


def _unscored(arrays: Arrays) -> list[Gallery]:
    """Return the galleries of answers alone."""
    found = [(name.split(".")[0], array) for name, array in arrays.items() if name.endswith(".reconstruction")]
    return [
        shown_together(1, [Series(tap, array, {})], *fitting([array.shape]))
        for tap, array in sorted(found, reverse=True)
    ]
