"""A finished run as an object of Python: its verdict, its numbers as tables, its pictures, and files for a paper."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from rich.console import Console

from leakbench.core.errors import InputError, nearest
from leakbench.core.leakage_points import LeakagePoint, point_name
from leakbench.core.typed import typed_arguments
from leakbench.measure.measures import EDIT_DISTANCE, RMSE
from leakbench.measure.rates import ASR, IDENTIFIED, TARGET_ERROR
from leakbench.report.columns import has_targets, has_texts
from leakbench.report.finished import Finished, read_finished
from leakbench.report.headline import Headline, headline, headline_html
from leakbench.report.latex import latex_table
from leakbench.report.own_rows import read_run
from leakbench.report.page import page_text
from leakbench.report.plots import FIGURES, Plot, curve_plot, gallery_plot, save_figure
from leakbench.report.table import print_table, printed_width
from leakbench.storage.atomic import write_text
from leakbench.storage.manifest_file import check_spared
from leakbench.storage.summary import Summary, Tap

__all__ = ["Pictures", "Result"]

CORE = {
    "victims": "victims",
    **{field: field for field in ASR.ends},
    "baseline": ASR.baseline,
    IDENTIFIED.name: IDENTIFIED.name,
}
"""{column of `Result.table`: field of the summary of a leakage point}, before the error that decides success."""


@dataclass(frozen=True, eq=False)
class Pictures:
    """Examples of one leakage point, and what the attack reconstructed of them.

    Args:
        truth: Examples (V, M, *shape) in [0, 1]: V victims, M examples in the leak of each.
        reconstruction: Reconstructions (V, M, *shape), each at the place of its example; NaN where the attack has no answer.
    """

    truth: NDArray[np.floating]
    reconstruction: NDArray[np.floating]


@dataclass(frozen=True, eq=False, repr=False)
class Result:
    """A finished run of `leakbench.run`, or of `leakbench run`.

    `print(result)` prints what the command prints. A notebook shows the verdict, the table and the pictures.

    Args:
        finished: Files of the run folder, as `Result.open` reads them.
    """

    finished: Finished

    @classmethod
    @typed_arguments
    def open(cls, folder: str | Path) -> Result:
        """Read the finished run in a folder.

        `leakbench.read` reads the rows of all finished runs below a folder.

        Args:
            folder: Run folder.

        Returns:
            The run.

        Raises:
            InputError: Where the folder has no finished run, or a file in it is damaged.
        """
        return cls(read_finished(Path(folder)))

    @property
    def folder(self) -> Path:
        """Run folder."""
        return self.finished.folder

    @property
    def summary(self) -> dict[str, Any]:
        """Everything that was measured, as `leakbench run --json` prints it."""
        return self._summary.as_dict()

    @property
    def _summary(self) -> Summary:
        return self.finished.summary.replaced(folder=str(self.folder))

    @property
    def verdicts(self) -> dict[str, str]:
        """{leakage point: verdict}, with keys such as `type-1`."""
        return {name: tap.verdict for name, tap in self._taps.items()}

    @property
    def verdict(self) -> str:
        """Verdict at the leakage point that leaks most: `reconstructs`, `identifies`, `inconclusive`, `attack failed` or
        `no leak found`."""
        return self._headline.verdict

    @property
    def headline(self) -> str:
        """The verdict in one line, as "RECONSTRUCTS: 10 of 10 images from one client's update (baseline guess: 0 of 10)"."""
        return self._headline.lines()[0]

    @property
    def _headline(self) -> Headline:
        return headline(self._summary)

    @cached_property
    def rows(self) -> pd.DataFrame:
        """One row for each example under attack at each leakage point, as `leakbench.read` returns them."""
        return read_run(self.folder)

    @property
    def pictures(self) -> dict[str, Pictures]:
        """{leakage point: examples and reconstructions}, with keys such as `type-1`; empty for a run without pictures."""
        found = {}
        for name, tap in self._taps.items():
            key = LeakagePoint(LeakagePoint.of(name).tap, (tap.round,)).file
            if f"{key}.reconstruction" in self.finished.arrays:
                arrays = (self.finished.arrays[f"{key}.{what}"] for what in ("truth", "reconstruction"))
                found[name] = Pictures(*arrays)
        return found

    def table(self) -> pd.DataFrame:
        """Return the core measurements, one line for each leakage point.

        Returns:
            A table with the index `leakage point` and the columns victims, asr, asr_low, asr_high (95 % interval), baseline (ASR
            of the baseline guess), identified, rmse and baseline_rmse (medians; of texts edit_distance and baseline_edit_distance),
            and verdict. A run with other targets than classes has target_error and baseline_target_error too. A value that does
            not exist is NaN.
        """
        verdicts = self.verdicts
        error = EDIT_DISTANCE if has_texts(self._summary) else RMSE
        columns = CORE | {error.name: error.name, f"baseline_{error.name}": error.baseline}
        if has_targets(self._summary):
            columns |= {TARGET_ERROR.name: TARGET_ERROR.name, f"baseline_{TARGET_ERROR.name}": TARGET_ERROR.baseline}
        lines = [
            {column: tap.value(field) for column, field in columns.items()} | {"verdict": verdicts[name]}
            for name, tap in self._taps.items()
        ]
        index = pd.Index(list(self._taps), name="leakage point")
        numbers = pd.DataFrame(lines, index=index)
        floats = [column for column in columns if column != "victims"]
        return numbers.astype(dict.fromkeys(floats, "float64"))

    @typed_arguments
    def figure(self, kind: str = "gallery", examples: int = 8) -> Plot:
        """Draw the run for a paper.

        Args:
            kind: `gallery` (originals above reconstructions) or `curve` (attack success rate against the RMSE threshold).
            examples: Number of columns of a gallery.

        Returns:
            A figure of matplotlib, which can be changed and saved, and which a notebook shows.

        Raises:
            InputError: For another kind, and for a gallery of a run without pictures.
        """
        if kind == "gallery":
            return gallery_plot([self.finished], examples)
        if kind == "curve":
            return curve_plot([self.finished])
        raise InputError(f"kind: got {kind!r}{nearest(kind, ('gallery', 'curve'))}")

    def latex(self) -> str:
        """Return the table in LaTeX, for a document that loads booktabs; as `leakbench report --latex` prints it."""
        return latex_table([self._summary])

    @typed_arguments
    def save(self, path: str | Path, kind: str = "gallery") -> Path:
        """Write the run into a file, atomically.

        Args:
            path: The file. Its suffix says what is written: `.pdf`, `.svg` or `.png` a figure, `.html` the report, `.csv` the rows,
                `.tex` the table.
            kind: Kind of a figure, as of `figure`.

        Returns:
            The path.

        Raises:
            InputError: For another suffix, or a file that belongs to a run.
        """
        path, suffix = Path(path), Path(path).suffix.lower()
        if suffix in FIGURES:
            return save_figure(self.figure(kind), path, "path")
        texts: dict[str, Callable[[], str]] = {
            ".html": lambda: page_text(self.finished),
            ".csv": lambda: self.rows.to_csv(index=False),
            ".tex": lambda: self.latex() + "\n",
        }
        if suffix not in texts:
            accepted = ", ".join([*FIGURES, *texts])
            raise InputError(f"path: got {str(path)!r}, expected a name that ends in {accepted}")
        check_spared("path", path)
        text = texts[suffix]()
        write_text(path, text, private=True)
        return path

    def __str__(self) -> str:
        """Return what `leakbench run` prints."""
        text = io.StringIO()
        print_table(self._summary, Console(file=text, width=printed_width(), highlight=False))
        return text.getvalue().rstrip("\n")

    def __repr__(self) -> str:
        return f"<Result of {str(self.folder)!r}: {self.verdict}>"

    def _repr_html_(self) -> str:
        """Return the verdict, the table and the first pictures for a notebook."""
        table = self.table().rename(index=point_name).to_html(float_format="{:.3g}".format, na_rep="n/a")
        return f"{headline_html(self._headline.lines(), self.verdict)}{table}{self._gallery()}"

    def _gallery(self) -> str:
        if not self.pictures:
            return ""
        data = base64.b64encode(self.figure()._repr_png_()).decode("ascii")
        return f'<img alt="Originals above their reconstructions" src="data:image/png;base64,{data}">'

    @property
    def _taps(self) -> Mapping[str, Tap]:
        return self.finished.summary.taps
