"""The commands of data sets: where they lie, fetching them, checking them."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import click

from leakbench.cli.options import check_names, help_alone, reporter_of

__all__ = ["data"]


@click.group(invoke_without_command=True)
@click.pass_context
def data(context: click.Context) -> None:
    """List, fetch and verify datasets."""
    help_alone(context)


_data_dir = click.option(
    "--data-dir",
    type=click.Path(path_type=Path),
    show_default="$LEAKBENCH_DATA, else the user's cache",
    help="Folder of the datasets.",
)


@data.command("list")
@_data_dir
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list.")
def data_list(data_dir: Path | None, as_json: bool) -> None:
    """List the datasets and the folder of each."""
    from leakbench.data.commands import list_datasets  # noqa: PLC0415

    _print_rows(list_datasets(data_dir), as_json)


@data.command("fetch")
@click.argument("name")
@_data_dir
def data_fetch(name: str, data_dir: Path | None) -> None:
    """Download the dataset NAME from its official source and check its sha256."""
    check_names({"dataset": name})
    from leakbench.data.commands import fetch_dataset  # noqa: PLC0415

    reporter = reporter_of()
    folder = fetch_dataset(name, data_dir, reporter)
    reporter.close()
    click.echo(f"{name}: {'embedded, nothing to fetch' if folder is None else folder}")


@data.command("verify")
@click.argument("name")
@_data_dir
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list.")
def data_verify(name: str, data_dir: Path | None, as_json: bool) -> None:
    """Check the sha256 of every file of the dataset NAME.

    The exit code is 1 if a file differs. A folder of your own images has no expected sha256: its own is printed.
    """
    check_names({"dataset": name})
    from leakbench.data.commands import verify_dataset  # noqa: PLC0415

    rows = verify_dataset(name, data_dir)
    _print_rows(rows, as_json)
    if any(row["ok"] is False for row in rows):
        sys.exit(1)


def _print_rows(rows: list[dict[str, Any]], as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(rows, indent=1, ensure_ascii=False))
        return
    if rows:
        click.echo("  ".join(rows[0]))
    for row in rows:
        click.echo("  ".join("-" if value in ("", None) else str(value) for value in row.values()))
