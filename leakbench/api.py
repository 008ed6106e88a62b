"""The functions of Python: measure a cell, account and audit a defense, measure a grid, compare two runs."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Unpack

import torch

from leakbench.cell import Request, identity
from leakbench.cell.budget import prepare
from leakbench.cell.command import run_words
from leakbench.cell.device import described
from leakbench.cell.fields import request_of
from leakbench.cell.request import Fields
from leakbench.experiment.execute import execute
from leakbench.log import check_tracker, log_run
from leakbench.progress import Reporter
from leakbench.report.finished import read_finished
from leakbench.report.page import report_into
from leakbench.report.result import Result
from leakbench.store import check_out, open_run

__all__ = ["run", "run_request"]


def run(
    *,
    out: str | Path | None = None,
    data_dir: str | Path | None = None,
    quiet: bool = False,
    log: str | None = None,
    **fields: Unpack[Fields],
) -> Result:
    """Train a federation with a defense, attack it at its leakage points, and return the result.

    The same call resumes an interrupted run, and reads a finished one. `leakbench run` does the same from the command line.

    Args:
        out: Run folder; None for `runs/DATASET-DEFENSE-ATTACK-HASH`.
        data_dir: Folder with the data sets; None for the variable LEAKBENCH_DATA, else the user's cache.
        quiet: Whether to print no progress.
        log: Tracker that also gets the numbers: `tensorboard`, `mlflow` or `wandb`; None for none.
        **fields: Fields of `leakbench.cell.request.Request` by name, such as `defense`, `attack`, `dataset`, `victims` and `seed`;
            the others have their defaults. Names of recipes are names of the catalog or paths of YAML files. The device is the
            CPU unless `device` names another; `device="auto"` takes a GPU where there is one.

    Returns:
        The finished run.

    Raises:
        InputError: For an unknown field, a value that does not fit, or missing data, in one line that says what is accepted.
    """
    request = request_of(fields)
    command = shlex.join(run_words(request))
    return run_request(request, command, _path(out), _path(data_dir), Reporter(quiet=quiet), log)[0]


def run_request(
    request: Request,
    command: str,
    out: Path | None,
    data_dir: Path | None,
    reporter: Reporter,
    log: str | None = None,
) -> tuple[Result, str | None]:
    """Measure the cell of a request, as `leakbench run` and `leakbench.run` do.

    Args:
        request: The request.
        command: Command that repeats the run, for its manifest.
        out: Run folder; None for `runs/` and the name of the cell, which has its hash.
        data_dir: Folder with the data sets; None for the variable LEAKBENCH_DATA, else the user's cache.
        reporter: Prints the progress.
        log: Name of a tracker, see `leakbench.log`.

    Returns:
        The finished run, and where the tracker wrote it; None without a tracker.

    Raises:
        InputError: For a value that does not fit, or missing data.
    """
    if log is not None:
        check_tracker(log)
    if out is not None:
        check_out(out)
    cell = prepare(request, data_dir, reporter)
    if cell.settings.device != "cpu":
        reporter.say(f"device: {described(torch.device(cell.settings.device))}")
    folder = out or Path("runs") / cell.name
    with open_run(folder, identity(cell, command), own=out is None, say=reporter.say) as opened:
        execute(cell, opened, reporter)
        report_into(opened)
        finished = read_finished(folder)
        where = None if log is None else log_run(log, folder, opened.manifest, finished.rounds)
    reporter.close()
    return Result(finished), where


def _path(given: str | Path | None) -> Path | None:
    return None if given is None else Path(given)
