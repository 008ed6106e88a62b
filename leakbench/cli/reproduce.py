"""The command that measures a table of a paper, or one of our own, and writes its page."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from leakbench.cli.options import NEW_FOLDER, EngineAsked, data_dir_option, quiet_option, reporter_of, takes_engine

if TYPE_CHECKING:
    from leakbench.reproduce.published import AnyTable
    from leakbench.study.engines import Placed

__all__ = ["reproduce"]


@click.command()
@click.argument("table", required=False)
@click.option(
    "--scale",
    default="quick",
    show_default=True,
    help="Size of the measurement. quick: 3 to 70 minutes on two cores. full: the paper's size.",
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
@click.option(
    "--runs",
    type=NEW_FOLDER,
    default=Path("runs"),
    show_default=True,
    help="Folder of the measured cells, one folder per hash.",
)
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
@click.option("--page", is_flag=True, help="Write the page from existing rows; measure nothing.")
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
    tables. A cell is measured once; run an interrupted command again to resume it. Accounting tables are computed, not
    measured: --scale, --runs and --data-dir do not affect them.

    A published row is stale if its cell is defined differently today: if the behaviour of a part, the engine, the
    training or the metrics changed, or if the settings, a recipe or the data changed. --stale without TABLE lists stale
    rows of tables, frontiers and cards, measures nothing and exits with 0; rows without local data are listed as unknown.
    --stale with TABLE accepts tables only, and exits with 1 if the data of a row are not on this machine.
    """
    from leakbench.errors import InputError, nearest  # noqa: PLC0415
    from leakbench.reproduce.accounting.table import AccountingTable  # noqa: PLC0415
    from leakbench.reproduce.choose import chosen, numbers  # noqa: PLC0415
    from leakbench.reproduce.columns import measures_of  # noqa: PLC0415
    from leakbench.reproduce.published import read_any  # noqa: PLC0415
    from leakbench.reproduce.reproduce import check_engine  # noqa: PLC0415
    from leakbench.reproduce.reproduce import reproduce as measure  # noqa: PLC0415
    from leakbench.reproduce.table import SCALES  # noqa: PLC0415
    from leakbench.study.study import Execution  # noqa: PLC0415

    parallel = engine()
    if stale:
        _stale(table, only, runs, out, data_dir, bool(again or changes or page), parallel)
        return
    if page and (only or again or changes or parallel):
        raise InputError("page: measures nothing, got --only, --again, --set or --engine as well; leave them out")
    if table is None:
        _list_tables(bare=not (only or again or page or changes))
        return
    if scale not in SCALES:
        raise InputError(f"scale: got {scale!r}{nearest(scale, SCALES)}")
    changed = numbers(changes)
    if changed and out is None:
        raise InputError("set: measures a trial, which would take the place of published rows; give --out FOLDER")
    asked, folder = read_any(table), out or Path("results")
    if changed and isinstance(asked, AccountingTable):
        raise InputError("set: an accounting table computes printed numbers and has no cells to change")
    check_engine(asked, parallel)
    if page:
        _write_page(asked, folder)
        return

    fresh = set[str]()

    reporter = reporter_of(quiet)

    def say(row: dict[str, Any]) -> None:
        fresh.add(row["cell"])
        reporter.close()
        click.echo(f"{row['row']}: {measures_of(row, getattr(asked, 'columns', 'claims'))}")

    execution = Execution(runs, data_dir, reporter, parallel)
    computed = isinstance(asked, AccountingTable)
    rows = measure(asked, scale, only, changed, folder, execution, _tell if computed else say, again)
    if not isinstance(asked, AccountingTable):
        kept = rows[
            rows["cell"].isin(chosen([line.name for line in asked.at(scale)], only)) & ~rows["cell"].isin(fresh)
        ]
        if len(kept):
            scales = ", ".join(sorted(set(kept["scale"]))) if "scale" in kept else "full"
            click.echo(
                f"kept: {len(kept)} rows that were there (scale {scales}); --again measures them too, --out FOLDER elsewhere"
            )
    click.echo(f"rows: {folder / asked.name}.csv   page: {folder / asked.name}.md")


def _stale(
    table: str | None,
    only: str,
    runs: Path,
    out: Path | None,
    data_dir: Path | None,
    beside: bool,
    engine: Placed | None,
) -> None:
    """List the stale rows of all pages, or measure those of a table again.

    Args:
        beside: Whether other options do not fit.
    """
    from leakbench.cli.stale import check_table, list_stale, measure_stale  # noqa: PLC0415
    from leakbench.errors import InputError  # noqa: PLC0415
    from leakbench.progress import Reporter  # noqa: PLC0415
    from leakbench.reproduce.accounting.table import AccountingTable  # noqa: PLC0415
    from leakbench.reproduce.columns import measures_of  # noqa: PLC0415
    from leakbench.reproduce.published import read_any  # noqa: PLC0415
    from leakbench.study.study import Execution  # noqa: PLC0415

    scaled = click.get_current_context().get_parameter_source("scale") is not ParameterSource.DEFAULT
    if beside or scaled:
        raise InputError(
            "stale: got --again, --set, --page or --scale as well; leave it out: stale rows are measured again at their own scale"
        )
    if table is None:
        if only:
            raise InputError("only: with --stale, expected a TABLE whose rows are meant, got none")
        list_stale(out, data_dir)
        return
    check_table(table, out or Path("results"))
    asked = read_any(table)

    def say(row: dict[str, Any]) -> None:
        if isinstance(asked, AccountingTable):
            _tell(row)
        else:
            click.echo(f"{row['row']}: {measures_of(row, asked.columns)}")

    execution = Execution(runs, data_dir, Reporter(), engine)
    if not measure_stale(asked, only, out or Path("results"), execution, say):
        click.get_current_context().exit(1)


def _tell(row: dict[str, Any]) -> None:
    """Say what was computed of a printed number by one reading."""
    import pandas as pd  # noqa: PLC0415

    from leakbench.reproduce.columns import text_of  # noqa: PLC0415

    given = "given by this reading" if row["gives"] else "not given by it"
    valid = row["renyi"] if pd.isna(row["losses"]) else row["losses"]
    said = (
        f"claimed {row['claimed']:g}, formula {text_of(row['formula'], 4)} ({given}), valid epsilon {text_of(valid, 4)}"
    )
    click.echo(f"{row['cell']}, {row['reading']}: {said}")


def _list_tables(bare: bool) -> None:
    """Print the names of all.

    Args:
        bare: Whether nothing else was asked for.
    """
    from leakbench.errors import InputError, nearest  # noqa: PLC0415
    from leakbench.reproduce.file import table_names  # noqa: PLC0415
    from leakbench.reproduce.published import read_any  # noqa: PLC0415

    if not bare:
        raise InputError(f"table: expected a name with these options{nearest('', table_names())}")
    for name in table_names():
        click.echo(f"{name:<32}{read_any(name).title}")


def _write_page(asked: AnyTable, folder: Path) -> None:
    """Write the page of the rows that are there."""
    from leakbench.errors import InputError  # noqa: PLC0415
    from leakbench.reproduce.reproduce import study_of  # noqa: PLC0415

    study = study_of(asked, folder)
    rows = study.store.read()
    if study.page is None or not len(rows):
        raise InputError(f"page: rows not found in {study.store.path}; measure first")
    click.echo(f"page: {study.page.write(rows)}")
