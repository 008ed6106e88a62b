"""The command that measures a table of a paper, or one of our own, and writes its page."""

from __future__ import annotations

from pathlib import Path

import click
from click.core import ParameterSource

from leakbench.cli.options import (
    NEW_FOLDER,
    EngineAsked,
    data_dir_option,
    quiet_option,
    reporter_of,
    runs_option,
    takes_engine,
)

__all__ = ["reproduce"]


@click.command()
@click.argument("table", required=False)
@click.option(
    "--scale",
    default="quick",
    show_default=True,
    help="Size of the measurement. quick: 3 to 70 minutes on two cores. full: the paper's size. "
    "auto: full for cells that take at most 30 minutes, else quick; a cell without a known time is measured at quick first.",
)
@click.option(
    "--only",
    default="",
    metavar="TEXT",
    help="Measure only the row with this name, or else the rows whose name contains this text.",
)
@click.option(
    "--set",
    "changes",
    multiple=True,
    metavar="NAME=VALUE",
    help="Change a number in every cell, such as victims=20, for a trial. Requires --out. Can be repeated.",
)
@runs_option
@click.option("--out", type=NEW_FOLDER, show_default="results", help="Folder of TABLE.csv and TABLE.md.")
@takes_engine
@data_dir_option
@click.option(
    "--again",
    is_flag=True,
    help="Measure existing rows again. Finished cells in --runs are read, not run.",
)
@click.option(
    "--stale",
    is_flag=True,
    help="List all stale published rows and the command that measures each again. With TABLE, measure its stale rows again, "
    "each at its own scale.",
)
@click.option(
    "--page",
    is_flag=True,
    help="Write the page from existing rows; measure nothing. With all, the pages of all tables that have rows.",
)
@quiet_option
def reproduce(
    table: str | None,
    scale: str,
    only: str,
    changes: tuple[str, ...],
    runs: Path,
    out: Path | None,
    data_dir: Path | None,
    again: bool,
    stale: bool,
    page: bool,
    quiet: bool,
    engine: EngineAsked,
) -> None:
    """Measure a table of a paper and write its rows and page.

    The page of TABLE has the claim, the measurement, its interval and a verdict. Without TABLE, prints the names of all
    tables; TABLE all measures all tables one after the other. A cell is measured once; run an interrupted command again to
    resume it. Accounting tables are computed, not measured: --scale, --runs and --data-dir do not affect them.

    A published row is stale if its cell is defined differently today: if the behaviour of a part, the engine, the
    training or the metrics changed, or if the settings, a recipe or the data changed. --stale without TABLE lists stale
    rows of tables, frontiers and cards, measures nothing and exits with 0; rows without local data are listed as unknown.
    --stale with TABLE accepts tables only, and exits with 1 if the data of a row are not on this machine.
    """
    from leakbench.cli.tables import list_stale, list_tables, measure, measure_stale, write_page  # noqa: PLC0415
    from leakbench.core.errors import InputError  # noqa: PLC0415
    from leakbench.core.progress import Reporter  # noqa: PLC0415
    from leakbench.study.study import Execution  # noqa: PLC0415

    parallel, folder = engine(), out or Path("results")
    if stale:
        scaled = click.get_current_context().get_parameter_source("scale") is not ParameterSource.DEFAULT
        if again or changes or page or scaled:
            raise InputError(
                "stale: got --again, --set, --page or --scale as well; leave it out: stale rows are measured again at their own"
                " scale"
            )
        if table is None:
            if only:
                raise InputError("only: with --stale, expected a TABLE whose rows are meant, got none")
            list_stale(out, data_dir)
        elif not measure_stale(table, only, folder, Execution(runs, data_dir, Reporter(), parallel)):
            click.get_current_context().exit(1)
        return
    if page and (only or again or changes or parallel):
        raise InputError("page: measures nothing, got --only, --again, --set or --engine as well; leave them out")
    if table is None:
        given = {"--only": only, "--set": changes, "--again": again, "--page": page}
        list_tables([option for option, value in given.items() if value])
    elif page:
        write_page(table, scale, folder)
    else:
        measure(table, scale, only, changes, out, Execution(runs, data_dir, reporter_of(quiet), parallel), again)
