"""A finished run as an object of Python: its verdict, its numbers as tables, its pictures, and files for a paper."""

from __future__ import annotations

import io
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from rich.console import Console

from leakbench.own.read import read_run
from leakbench.report.finished import Finished, read_finished
from leakbench.report.table import print_table
from leakbench.summary.verdict_words import INCONCLUSIVE, VERDICTS, current_word

__all__ = ["Pictures", "Result", "terminal_width"]

WIDTH = 120
"""Columns of printed text where neither a terminal nor the variable COLUMNS states a width."""

CORE = {
    "victims": "victims",
    "asr": "asr",
    "asr_low": "asr_low",
    "asr_high": "asr_high",
    "baseline": "null_asr",
    "identified": "identified",
    "rmse": "rmse",
    "baseline_rmse": "null_rmse",
}
"""{column of `Result.table`: field of the summary of a leakage point}."""


def terminal_width() -> int:
    """Return the width of printed text: the variable COLUMNS where it is a number, else `WIDTH`."""
    columns = os.environ.get("COLUMNS", "")
    return int(columns) if columns.isdecimal() else WIDTH


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
        return {**self.finished.summary, "folder": str(self.folder)}

    @property
    def verdicts(self) -> dict[str, str]:
        """{leakage point: verdict}, with keys such as `type-1`."""
        return {name: current_word(tap.get("verdict") or INCONCLUSIVE) for name, tap in self._taps.items()}

    @property
    def verdict(self) -> str:
        """Verdict at the leakage point that leaks most: `reconstructs`, `identifies`, `inconclusive`, `attack failed` or
        `no leak found`."""
        return min(self.verdicts.values(), key=VERDICTS.index)

    @cached_property
    def rows(self) -> pd.DataFrame:
        """One row for each example under attack at each leakage point, as `leakbench.read` returns them."""
        return read_run(self.folder)

    @property
    def pictures(self) -> dict[str, Pictures]:
        """{leakage point: examples and reconstructions}, with keys such as `type-1`; empty for a run without pictures."""
        found = {}
        for name, tap in self._taps.items():
            key = f"{name.partition('@')[0]}.round{tap['round']}"
            if f"{key}.reconstruction" in self.finished.arrays:
                arrays = (self.finished.arrays[f"{key}.{what}"] for what in ("truth", "reconstruction"))
                found[name] = Pictures(*arrays)
        return found

    def table(self) -> pd.DataFrame:
        """Return the core measurements, one line for each leakage point.

        Returns:
            A table with the index `leakage point` and the columns victims, asr, asr_low, asr_high (95 % interval), baseline (ASR
            of the baseline guess), identified, rmse and baseline_rmse (medians), and verdict. A value that does not exist is NaN.
        """
        verdicts = self.verdicts
        lines = [
            {column: tap.get(field) for column, field in CORE.items()} | {"verdict": verdicts[name]}
            for name, tap in self._taps.items()
        ]
        index = pd.Index(list(self._taps), name="leakage point")
        numbers = pd.DataFrame(lines, index=index)
        floats = [column for column in CORE if column != "victims"]
        return numbers.astype(dict.fromkeys(floats, "float64"))

    def __str__(self) -> str:
        """Return what `leakbench run` prints."""
        text = io.StringIO()
        print_table(self.summary, Console(file=text, width=terminal_width(), highlight=False))
        return text.getvalue().rstrip("\n")

    def __repr__(self) -> str:
        return f"<Result of {str(self.folder)!r}: {self.verdict}>"

    @property
    def _taps(self) -> Mapping[str, Mapping[str, Any]]:
        taps: Mapping[str, Mapping[str, Any]] = self.finished.summary["taps"]
        return taps
