"""Figures for a paper, from finished runs and frontiers: PDF, SVG or PNG."""

from __future__ import annotations

import dataclasses
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from numpy.typing import NDArray

from leakbench.core.errors import InputError, nearest
from leakbench.core.leakage_points import after_rounds, point_name
from leakbench.core.svg import COLOURS, DASHES
from leakbench.frontier.choose import chosen, main_rows
from leakbench.frontier.figure import figure_of
from leakbench.frontier.frontier import store_of
from leakbench.measure.measures import deciding
from leakbench.measure.statistics import threshold_curve
from leakbench.report.finished import Finished, read_finished
from leakbench.report.gallery import Scores, Series, coloured, pointed
from leakbench.report.several import titles
from leakbench.storage.manifest_file import check_spared
from leakbench.storage.store import write_atomically
from leakbench.summary.compare import SAME_RULER

__all__ = [
    "FIGURES",
    "KINDS",
    "Plot",
    "check_figure",
    "curve_plot",
    "frontier_plot",
    "gallery_plot",
    "plot",
    "save_figure",
]

KINDS = ("gallery", "curve", "frontier")

FIGURES = (".pdf", ".svg", ".png")
"""Suffixes of figures."""

FORMATS: Mapping[str, Mapping[str, Any]] = {
    ".pdf": {"metadata": {"CreationDate": None}},
    ".svg": {"metadata": {"Date": None}},
    ".png": {"metadata": {"Software": None}, "dpi": 200},
}
"""{suffix of a figure: arguments that make equal figures equal files}."""

STYLE: Any = {
    "font.family": "DejaVu Sans",
    "font.size": 8,
    "svg.hashsalt": "leakbench",
    "pdf.fonttype": 42,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.3,
    "grid.linewidth": 0.5,
    "legend.frameon": False,
}
"""Type 42 fonts: conferences refuse Type 3."""


EXAMPLES = 8
"""Columns of a gallery by default."""

THRESHOLDS = 241
"""Points of a curve."""


class Plot(Figure):
    """A figure that a notebook shows by itself; one of matplotlib alone is shown only where pyplot was imported."""

    def _repr_png_(self) -> bytes:
        """Return the figure for a notebook."""
        drawn = io.BytesIO()
        FigureCanvasAgg(self)
        self.savefig(drawn, format="png", dpi=110, metadata={"Software": None})
        return drawn.getvalue()


def plot(places: Sequence[str | Path], kind: str, out: Path, examples: int = EXAMPLES) -> Path:
    """Draw finished runs, or a frontier, into a file.

    Args:
        places: Run folders; for the kind `frontier` one folder of `leakbench frontier`, or its CSV file.
        kind: One of `KINDS`.
        out: The file; its suffix is the format.
        examples: Number of columns of a gallery.

    Returns:
        The file.

    Raises:
        InputError: For another kind or suffix, and for a place without what the kind needs.
    """
    if kind not in KINDS:
        raise InputError(f"kind: got {kind!r}{nearest(kind, KINDS)}")
    if examples < 1:
        raise InputError(f"examples: got {examples}, expected at least 1")
    check_figure("out", out)
    if kind == "frontier":
        if len(places) != 1:
            raise InputError(f"frontier: got {len(places)} places, expected one folder or CSV file of a frontier")
        return save_figure(frontier_plot(Path(places[0])), out, private=False)
    runs = [read_finished(Path(place)) for place in places]
    return save_figure(gallery_plot(runs, examples) if kind == "gallery" else curve_plot(runs), out)


def check_figure(field: str, path: Path) -> None:
    """Raise InputError for a file of an unknown format, and for one that belongs to a run."""
    if path.suffix.lower() not in FORMATS:
        raise InputError(f"{field}: got {str(path)!r}, expected a name that ends in {', '.join(FORMATS)}")
    if path.is_dir():
        raise InputError(f"{field}: {str(path)!r} is a folder; give the name of a file, as figure.pdf")
    check_spared(field, path)


def save_figure(figure: Figure, path: Path, field: str = "out", private: bool = True) -> Path:
    """Write a figure atomically in the format of the file's suffix and return the path; equal figures give equal files.

    Args:
        field: What an InputError names, for another suffix.
        private: Whether only its owner may read the file, as for pictures.
    """
    check_figure(field, path)
    suffix = path.suffix.lower()
    with mpl.rc_context(STYLE):
        FigureCanvasAgg(figure)
        write_atomically(path, lambda file: figure.savefig(file, format=suffix[1:], **FORMATS[suffix]), private)
    return path


def gallery_plot(runs: Sequence[Finished], examples: int = EXAMPLES) -> Plot:
    """Draw originals above their reconstructions, a row for each run and leakage point.

    Args:
        runs: Finished runs. Reconstructions of equal originals are below one row of them.
        examples: Number of columns.

    Returns:
        The figure, with the RMSE under each picture or record and the edit distance under each sentence; green where it counts as
        a success. Tokens have the colours of the report.

    Raises:
        InputError: Where a run has no pictures.
    """
    groups = _groups(runs)
    lines = [series for group in groups for series in group]
    wide = min(examples, max(len(_flat(series.examples)) for series in lines))
    with mpl.rc_context(STYLE):
        tile = 0.62 if all(series.words is None for series in lines) else 1.9  # Inches.
        figure = Plot(figsize=(1.15 + tile * wide, 0.82 * len(lines)), layout="constrained")
        panels = figure.subplots(len(lines), wide, squeeze=False)
        for row, series in zip(panels, lines, strict=True):
            _heading(row[0], series.heading)
            shown, scores = _flat(series.examples), _flat_scores(series)
            true = None if series.originals is None else _flat(series.originals)
            for place, axes in enumerate(row):
                if place < len(shown):
                    _tile(
                        axes,
                        shown[place],
                        scores[place] if scores else None,
                        series,
                        None if true is None else true[place],
                    )
                axes.set(xticks=[], yticks=[])
                for spine in axes.spines.values():
                    spine.set_visible(False)
    return figure


def _groups(runs: Sequence[Finished]) -> list[list[Series]]:
    """Return [[the originals, then the reconstructions of all runs and leakage points that attacked these examples]]."""
    names = titles(runs) if len(runs) > 1 else [""]
    groups: list[list[Series]] = []
    for name, run in zip(names, runs, strict=True):
        found = list(pointed(run.arrays, run.rows))
        if not found:
            raise InputError(f"{str(run.folder)!r}: the run has no pictures (--no-pictures); expected a run with them")
        several = len({leak for leak, _ in found}) > 1
        for leak, (truth, *answers) in found:
            rounds = after_rounds(leak) if several else ""
            headed = [dataclasses.replace(series, heading=_headed(series.heading + rounds, name)) for series in answers]
            same = next((g for g in groups if np.array_equal(g[0].examples, truth.examples)), None)
            if same is None:
                groups.append([truth, *headed])
            else:
                same.extend(headed)
    return groups


def _headed(point: str, name: str) -> str:
    return "\n".join(filter(None, (name, point.replace(" (", "\n(").replace(" after", "\nafter"))))


def _heading(axes: Axes, text: str) -> None:
    axes.set_ylabel(text, rotation=0, ha="right", va="center", fontsize=7)


def _flat(examples: NDArray[np.floating]) -> NDArray[np.floating]:
    """Return the examples of all victims (V * M, *shape)."""
    return examples.reshape(-1, *examples.shape[2:])


def _flat_scores(series: Series) -> list[tuple[float, bool]] | None:
    if series.scores is None:
        return None
    scores: Scores = series.scores
    many, members = series.examples.shape[:2]
    return [scores.get((v, m), (float("nan"), False)) for v in range(many) for m in range(members)]


def _tile(
    axes: Axes,
    example: NDArray[np.floating],
    score: tuple[float, bool] | None,
    series: Series,
    original: NDArray[np.floating] | None,
) -> None:
    if score is not None and np.isfinite(score[0]):
        axes.set_xlabel(f"{score[0]:.3f}", fontsize=6, labelpad=1, color="#00704f" if score[1] else "#444444")
    if not np.isfinite(example).all():
        axes.set_xlabel("no answer", fontsize=6, labelpad=1)
        return
    if series.words is not None:
        _sentence(axes, coloured(series.words, example, original))
        return
    values = np.clip(example.astype(np.float64), 0, 1)
    plane = values.ndim == 3 and values.shape[0] in (1, 3)
    # Records and other shapes are a strip of their features, as in the report.
    pixels = values.transpose(1, 2, 0) if plane else values.reshape(1, -1, 1)
    if pixels.shape[2] == 1:
        axes.imshow(pixels[..., 0], cmap="gray", vmin=0, vmax=1, interpolation="nearest", aspect="auto")
    else:
        axes.imshow(pixels, interpolation="nearest")
    if plane:
        axes.set_aspect("equal")
    axes.grid(False)


LINE = 40
"""Characters of a line of a sentence in a figure."""

LINES = 6
"""Lines of a sentence in a figure; the rest is left out, which three dots show."""

TOKENS = {"": "#000000", "right": "#b3261e", "moved": "#8a5a00", "wrong": "#777777"}
"""{class of a token in a report: its colour}."""


def _sentence(axes: Axes, tokens: Sequence[tuple[str, str]]) -> None:
    """Write the tokens of a sentence in lines, each in the colour of its class."""
    axes.set(xlim=(0, LINE), ylim=(LINES, 0), facecolor="none")
    axes.grid(False)
    line, column = 0, 0
    for token, kind in tokens:
        if column and column + len(token) > LINE:
            line, column = line + 1, 0
        if line == LINES:
            axes.text(LINE, LINES, "...", fontsize=5, family="monospace", ha="right", va="bottom")
            return
        axes.text(column, line + 0.5, token, fontsize=5, family="monospace", va="center", color=TOKENS[kind])
        column += len(token) + 1


def curve_plot(runs: Sequence[Finished]) -> Plot:
    """Draw the attack success rate against the RMSE that counts as success.

    Args:
        runs: Finished runs on the same dataset.

    Returns:
        The figure: a line for each run and leakage point, the baseline guess of the first run in grey, and its threshold eta.

    Raises:
        InputError: Where no example has an RMSE, or where the runs differ in dataset or threshold.
    """
    _check_one_threshold(runs)
    names = titles(runs) if len(runs) > 1 else [""]
    lines = {
        ", ".join(filter(None, (name, point_name(point)))): rows
        for name, run in zip(names, runs, strict=True)
        for point, rows in run.points().items()
    }
    everyone = pd.concat(list(lines.values()))
    ruler = deciding(everyone)
    scores = np.concatenate([_floats(everyone[ruler.name]), _floats(everyone[ruler.baseline])])
    if not np.isfinite(_floats(everyone[ruler.name])).any():
        raise InputError(
            f"curve: no example has an {ruler.heading}; the attack only ranks candidates, or has no answer"
        )
    eta = float(runs[0].rows["eta"].iloc[0])
    most = min(1.0, 1.05 * max(float(np.nanmax(scores)), 2 * eta))
    thresholds = np.linspace(0, most, THRESHOLDS)
    with mpl.rc_context(STYLE):
        figure = Plot(figsize=(4.2, 2.8 + 0.16 * len(lines)), layout="constrained")
        axes = figure.subplots()
        for place, (name, rows) in enumerate(lines.items()):
            axes.step(
                thresholds,
                threshold_curve(_floats(rows[ruler.name]), thresholds),
                DASHES[place % len(DASHES)],
                where="post",
                color=COLOURS[place % len(COLOURS)],
                label=name,
            )
        baseline = threshold_curve(_floats(runs[0].rows[ruler.baseline]), thresholds)
        axes.step(thresholds, baseline, where="post", color="#999999", linewidth=2.5, alpha=0.7, label="baseline guess")
        axes.axvline(eta, color="#444444", linewidth=0.8, linestyle=":", label=f"success: {ruler.heading} ≤ {eta:.3f}")
        axes.set(xlim=(0, most), ylim=(-0.02, 1.02), xlabel=f"{ruler.heading} threshold", ylabel="attack success rate")
        handles, labels = axes.get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=2, fontsize=7)
    return figure


def _check_one_threshold(runs: Sequence[Finished]) -> None:
    data = sorted({str(run.manifest["cell"]["dataset"]) for run in runs})
    if len(data) > 1:
        raise InputError(f"curve: the runs are of the data sets {', '.join(data)}; expected one; draw a figure of each")
    etas = np.concatenate([_floats(run.rows["eta"]) for run in runs])
    if not np.allclose(etas, etas[0], rtol=SAME_RULER, atol=0):
        raise InputError(
            f"curve: the runs have success thresholds from {etas.min():g} to {etas.max():g}; expected one; draw a figure of each"
        )


def frontier_plot(place: Path) -> Figure:
    """Draw a frontier: accuracy against valid epsilon and against identification, a line for each defense.

    Args:
        place: Folder that `leakbench frontier` wrote, or its CSV file.

    Returns:
        The figure.

    Raises:
        InputError: Where there is not exactly one frontier, or it has no measured setting.
    """
    files = sorted(place.glob("frontier_*.csv")) if place.is_dir() else [place]
    if len(files) != 1:
        names = ", ".join(path.name for path in files) or "none"
        raise InputError(f"frontier: expected one frontier_*.csv in {str(place)!r}, found {names}; give a file")
    if not files[0].is_file():
        raise InputError(f"frontier: {str(place)!r} not found; expected a folder or a CSV file of `leakbench frontier`")
    rows = main_rows(store_of(files[0]).read())
    if not len(rows):
        raise InputError(f"frontier: {str(files[0])!r} has no measured setting")
    with mpl.rc_context({**STYLE, "axes.grid": False, "axes.unicode_minus": False}):
        return figure_of(rows, chosen(rows))


def _floats(values: pd.Series) -> NDArray[np.float64]:
    return values.to_numpy(dtype=np.float64, na_value=np.nan)
