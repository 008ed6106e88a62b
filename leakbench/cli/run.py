"""The commands of runs: run a cell, write its report again, compare two."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from leakbench.cli.options import (
    NEW_FOLDER,
    attack_options,
    check_fields,
    federation_options,
    print_files,
    quiet_option,
    reporter_of,
    seconds,
    success,
    verbose_option,
    words,
)

if TYPE_CHECKING:
    from leakbench.auditing.verdict import Audit
    from leakbench.storage.summary import Summary

from leakbench.core.request import Request

__all__ = ["compare", "plot", "report", "run"]


@click.command()
@federation_options
@attack_options
@click.option("--out", type=NEW_FOLDER, show_default="runs/DATASET-DEFENSE-ATTACK-HASH", help="Run folder.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of the table.")
@quiet_option
@click.option(
    "--log", "tracker", metavar="TRACKER", help="Also log the results to a tracker: tensorboard, mlflow or wandb."
)
@verbose_option
def run(
    out: Path | None,
    as_json: bool,
    quiet: bool,
    tracker: str | None,
    verbose: bool,
    data_dir: Path | None,
    **given: Any,
) -> None:
    """Train a federation with a defense, attack it, and print the results.

    Without options, runs an undefended federation on an embedded dataset, offline. Run an interrupted command again to
    resume it.
    """
    if tracker is not None:
        from leakbench.log import check_tracker  # noqa: PLC0415

        check_tracker(tracker)
    given.update(taps=words("taps", given["taps"]), leak_rounds=words("leak-rounds", given["leak_rounds"]))
    given.update(success=success(given["success"]), budget=seconds("budget", given["budget"]))
    check_fields(given)
    request = Request(**given)
    from leakbench.api import run_request  # noqa: PLC0415

    command = shlex.join(["leakbench", *sys.argv[1:]])
    result, logged = run_request(request, command, out, data_dir, reporter_of(quiet), tracker)
    if as_json:
        click.echo(json.dumps(result.summary, indent=1))
        return
    _print_summary(result.finished.summary, verbose)
    print_files({"rows": result.folder / "rows.parquet", "report": result.folder / "report.html"})
    if logged is not None:
        click.echo(f"log: {logged}")


@click.command()
@click.argument("folders", metavar="FOLDER...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    show_default="compare-A-B.html or N-levels-A-Z.html next to the first run folder",
    help="File of the page of several runs.",
)
@click.option(
    "--redact", is_flag=True, help="Leave out all examples and reconstructions, so that the page can be shared."
)
@click.option("--latex", is_flag=True, help="Print the table in LaTeX (booktabs) instead; write no page.")
@verbose_option
def report(folders: tuple[Path, ...], out: Path | None, redact: bool, latex: bool, verbose: bool) -> None:
    """Write the HTML report of a finished run, or of several.

    For one run, writes report.html into its FOLDER and prints its table. For two runs on the same victims, writes one page
    that compares them. For three or more noise levels of one cell, writes one page with a slider from the smallest to the
    largest noise.
    """
    from leakbench.core.errors import InputError  # noqa: PLC0415
    from leakbench.report import write_report, write_together  # noqa: PLC0415
    from leakbench.report.audited import audit_of  # noqa: PLC0415
    from leakbench.report.own import OWN, write_own_report  # noqa: PLC0415
    from leakbench.storage.store import read_manifest  # noqa: PLC0415
    from leakbench.storage.summary import Summary  # noqa: PLC0415

    if latex:
        from leakbench.report.finished import read_finished  # noqa: PLC0415
        from leakbench.report.latex import latex_table  # noqa: PLC0415
        from leakbench.report.several import check_once, settings_of  # noqa: PLC0415

        if out is not None or redact:
            raise InputError(f"latex: got {'--out' if out else '--redact'} as well; expected --latex alone")
        runs = [read_finished(folder) for folder in folders]
        check_once(runs)
        click.echo(latex_table([run.summary for run in runs], [settings_of(run) for run in runs]))
        return
    if len(folders) > 1:
        click.echo(f"report: {write_together(folders, out, redact)}")
        return
    if out is not None:
        raise InputError(
            f"out: got {str(out)!r}, expected only with several runs; for one run the page is report.html in its folder"
        )
    if read_manifest(folders[0]).get("kind") == OWN:
        click.echo(f"report: {write_own_report(folders[0], redact)}")
        return
    page = write_report(folders[0], redact)
    manifest = read_manifest(folders[0])
    _print_summary(Summary.of(manifest["summary"]), verbose, audit_of(folders[0], manifest))
    click.echo(f"report: {page}")


@click.command()
@click.argument("one", type=click.Path(path_type=Path))
@click.argument("other", type=click.Path(path_type=Path))
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print a JSON list; its fields difference, low and high are ONE minus OTHER.",
)
def compare(one: Path, other: Path, as_json: bool) -> None:
    """Compare two finished runs on the same victims.

    Prints OTHER minus ONE with the interval of a paired bootstrap. The values are means over examples: ASR, labels, RMSE
    and identification; for tables also correct features and records. Texts have the edit distance instead of the RMSE, and
    exact sentences and ROUGE-1.

    Over several networks, the interval is at least as wide as Student's over their mean differences, so that it holds for
    other networks too. Over one network it is about victims of this network only.

    `sign` is the p-value of the exact two-sided sign test over victims (whole batches) that differ: the probability of a
    split at least as uneven if both runs were equally likely to be better. `differs` is set if p is below .05, the interval
    excludes 0, and there are at least 10 victims.
    """
    from leakbench import api  # noqa: PLC0415

    found = api.compare(one, other)
    click.echo(json.dumps(found.as_dicts(), indent=1) if as_json else found.text)
    if found.left_out:
        click.echo(f"only one of the runs leaks at {', '.join(found.left_out)}: left out", err=True)


@click.command()
@click.argument("places", metavar="RUN...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--kind",
    default="gallery",
    show_default=True,
    help="Figure: gallery (originals and reconstructions), curve (ASR against the RMSE threshold) or frontier.",
)
@click.option("-o", "--out", required=True, type=click.Path(path_type=Path), help="File: .pdf, .svg or .png.")
@click.option("--examples", type=int, default=8, show_default=True, help="Number of columns of a gallery.")
def plot(places: tuple[Path, ...], kind: str, out: Path, examples: int) -> None:
    """Draw a figure of finished runs for a paper.

    RUN is a run folder; several are drawn into one figure. For --kind frontier it is the folder of `leakbench frontier`, or
    its CSV file.
    """
    from leakbench.report.plots import plot as draw  # noqa: PLC0415

    click.echo(f"figure: {draw(places, kind, out, examples)}")


def _print_summary(summary: Summary, verbose: bool, audit: Audit | None = None) -> None:
    from rich.console import Console  # noqa: PLC0415

    from leakbench.report.table import print_table, printed_width  # noqa: PLC0415

    width = None if sys.stdout.isatty() else printed_width()
    print_table(summary, Console(width=width, highlight=False), verbose, audit)
