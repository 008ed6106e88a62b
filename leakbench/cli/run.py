"""The commands of runs: run a cell, write its report again, compare two."""

from __future__ import annotations

import json
import os
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from leakbench.cli.options import NEW_FOLDER, attack_options, federation_options, seconds, success, words

if TYPE_CHECKING:
    from leakbench.store import Run

__all__ = ["compare", "report", "run"]


@click.command()
@federation_options
@attack_options
@click.option("--out", type=NEW_FOLDER, help="the run's folder [default: runs/DATASET-DEFENSE-ATTACK-HASH]")
@click.option("--json", "as_json", is_flag=True, help="print one JSON object instead of the table")
@click.option("--quiet", is_flag=True, help="no progress")
@click.option("--log", "tracker", metavar="TRACKER", help="also write the figures to tensorboard or mlflow")
def run(out: Path | None, as_json: bool, quiet: bool, tracker: str | None, data_dir: Path | None, **given: Any) -> None:
    """Train a federation with a defense, attack it at its leakage points, and print one table.

    The same command goes on where it was cut short. Without options: an undefended embedded cell, offline.
    """
    import torch  # noqa: PLC0415

    from leakbench.cell import Request, identity  # noqa: PLC0415
    from leakbench.cell.budget import prepare  # noqa: PLC0415
    from leakbench.cell.device import described  # noqa: PLC0415
    from leakbench.experiment.execute import execute  # noqa: PLC0415
    from leakbench.progress import Reporter  # noqa: PLC0415
    from leakbench.report.page import report_into  # noqa: PLC0415
    from leakbench.store import check_out, open_run  # noqa: PLC0415

    if tracker is not None:
        from leakbench.log import check_tracker  # noqa: PLC0415

        check_tracker(tracker)
    given.update(taps=words("taps", given["taps"]), leak_rounds=words("leak-rounds", given["leak_rounds"]))
    given.update(success=success(given["success"]), budget=seconds("budget", given["budget"]))
    if out is not None:
        check_out(out)
    reporter = Reporter(quiet=quiet)
    cell = prepare(Request(**given), data_dir, reporter)
    if cell.settings.device != "cpu":
        reporter.say(f"device: {described(torch.device(cell.settings.device))}")
    folder, command = out or Path("runs") / cell.name, shlex.join(["leakbench", *sys.argv[1:]])
    with open_run(folder, identity(cell, command), own=out is None, say=reporter.say) as opened:
        summary = execute(cell, opened, reporter)
        page = report_into(opened)
        logged = None if tracker is None else _logged(tracker, opened)
    reporter.close()
    if as_json:
        click.echo(json.dumps(summary, indent=1))
        return
    _print_summary(summary)
    click.echo(f"rows: {folder / 'rows.parquet'}   report: {page}")
    if logged is not None:
        click.echo(f"log: {logged}")


def _logged(tracker: str, opened: Run) -> str:
    from leakbench.log import log_run  # noqa: PLC0415

    return log_run(tracker, opened.folder, opened.manifest, opened.read_rows("rounds.parquet"))


@click.command()
@click.argument("folders", metavar="FOLDER...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    help="of several runs: the page [default: compare-A-B.html or N-levels-A-Z.html beside the first run's folder]",
)
@click.option("--redact", is_flag=True, help="a page without pictures, which may be passed on: scores only")
def report(folders: tuple[Path, ...], out: Path | None, redact: bool) -> None:
    """Write report.html into the FOLDER of a finished run and print its table; of several runs one page.

    Two runs on the same victims stand beside each other; three or more, levels of noise of one cell, are moved through by a
    slider, from the least noise to the most.
    """
    from leakbench.errors import InputError  # noqa: PLC0415
    from leakbench.report import write_report, write_together  # noqa: PLC0415
    from leakbench.report.own import OWN, write_own_report  # noqa: PLC0415
    from leakbench.store import read_manifest  # noqa: PLC0415
    from leakbench.summary.verdict_words import current_summary  # noqa: PLC0415

    if len(folders) > 1:
        click.echo(f"report: {write_together(folders, out, redact)}")
        return
    if out is not None:
        raise InputError(
            f"out: got {str(out)!r}, expected only beside several runs; of one it is report.html in its folder"
        )
    if read_manifest(folders[0]).get("kind") == OWN:
        click.echo(f"report: {write_own_report(folders[0], redact)}")
        return
    page = write_report(folders[0], redact)
    _print_summary(current_summary(read_manifest(folders[0])["summary"]))
    click.echo(f"report: {page}")


@click.command()
@click.argument("one", type=click.Path(path_type=Path))
@click.argument("other", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="print a list of objects")
def compare(one: Path, other: Path, as_json: bool) -> None:
    """Compare two finished runs on the same victims: ONE minus OTHER, with a paired bootstrap's interval.

    Means over the examples of the ASR, the labels, the RMSE, what is identified, and of tables the features and records that
    are right. `sign` is the p of the exact two-sided sign test: of the victims (whole batches) who differ at all, how often as
    many or more would fare better in the same run if either run were as likely. `differs` stands where it is below .05, the
    interval does not hold 0, and there are 10 victims or more.
    """
    from leakbench.summary.compare import as_dicts, left_out, lines  # noqa: PLC0415
    from leakbench.summary.compare import compare as differences  # noqa: PLC0415

    found = differences(one, other)
    for line in [json.dumps(as_dicts(found), indent=1)] if as_json else lines(found):
        click.echo(line)
    if alone := left_out(one, other):
        click.echo(f"only one of the runs leaks at {', '.join(alone)}: left out", err=True)


def _print_summary(summary: dict[str, Any]) -> None:
    from rich.console import Console  # noqa: PLC0415

    from leakbench.report.table import print_table  # noqa: PLC0415

    columns = os.environ.get("COLUMNS", "")
    width = None if sys.stdout.isatty() else int(columns) if columns.isdecimal() else 120
    print_table(summary, Console(width=width, highlight=False))
