"""The commands for CI: keep what a run showed, and hold a later run against it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click

from leakbench.core.errors import InputError

__all__ = ["baseline", "gate"]

FAILED = 1

PATH = click.Path(path_type=Path)


@click.command()
@click.argument("folder", type=PATH)
def baseline(folder: Path) -> None:
    """Print the baseline of a finished run for `leakbench gate`.

    The baseline of the run in FOLDER is JSON, small enough to commit, and contains no examples.
    """
    from leakbench.gate.baseline import baseline_of  # noqa: PLC0415

    click.echo(json.dumps(baseline_of(folder), separators=(",", ":")))


@click.command()
@click.argument("folder", type=PATH)
@click.option(
    "--baseline",
    "before",
    type=PATH,
    required=True,
    help="Run folder, or file with the output of `leakbench baseline`.",
)
@click.option("--max-asr", type=float, help="Fail if the ASR of a leakage point is above this value.")
@click.option("--min-accuracy", type=float, help="Fail if the trained accuracy is below this value.")
@click.option(
    "--max-epsilon",
    type=float,
    help="Fail if the valid epsilon of the released models is above this value or does not exist.",
)
@click.option("--markdown", "page", type=PATH, metavar="FILE", help="Also write a Markdown page for a pull request.")
@click.option("--junit", "suite", type=PATH, metavar="FILE", help="Also write JUnit XML.")
def gate(
    folder: Path,
    before: Path,
    max_asr: float | None,
    min_accuracy: float | None,
    max_epsilon: float | None,
    page: Path | None,
    suite: Path | None,
) -> None:
    """Check that a finished run leaks no more than its baseline.

    Compares the run in FOLDER with a baseline on the same victims. The exit code is 1 if more leaks, else 0. More leaks if
    ASR or identification rose beyond the paired 95 % interval, which counts the variance between networks, and the exact
    sign test agrees, or if a limit is exceeded.
    """
    from leakbench.gate.gate import GateLimits, junit, lines, markdown  # noqa: PLC0415
    from leakbench.gate.gate import gate as checked  # noqa: PLC0415
    from leakbench.storage.atomic import write_text  # noqa: PLC0415

    for name, share in (("max-asr", max_asr), ("min-accuracy", min_accuracy)):
        if share is not None and not 0 <= share <= 1:
            raise InputError(f"{name}: got {share:g}, expected a share from 0 to 1")
    if max_epsilon is not None and not max_epsilon >= 0:
        raise InputError(f"max-epsilon: got {max_epsilon:g}, expected 0 or more")
    _check_files(folder, before, page, suite)
    checks = checked(folder, before, GateLimits(max_asr, min_accuracy, max_epsilon))
    for path, text in ((page, markdown(checks, folder.name)), (suite, junit(checks, folder.name))):
        if path is not None:
            write_text(path, text)
    for line in lines(checks):
        click.echo(line)
    if not all(check.holds for check in checks):
        sys.exit(FAILED)


def _check_files(folder: Path, before: Path, page: Path | None, suite: Path | None) -> None:
    """Raise InputError for a file to be written that is read, written twice, or another run's."""
    from leakbench.storage.manifest_file import check_spared  # noqa: PLC0415

    taken = {before.resolve(): "the baseline"}
    for name, path in (("markdown", page), ("junit", suite)):
        if path is None:
            continue
        at = path.resolve()
        what = taken.get(at) or ("a file of the run" if folder.resolve() in at.parents and at.exists() else None)
        what = what or ("a file of the baseline" if before.resolve() in at.parents and at.exists() else None)
        if what is not None:
            raise InputError(f"{name}: got {str(path)!r}, which is {what}; expected another file")
        check_spared(name, path)
        taken[at] = f"--{name}'s file"
