"""The commands of data sets: where they lie, fetching them, checking them."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import click

from leakbench.cli.options import help_alone

__all__ = ["data"]


@click.group(invoke_without_command=True)
@click.pass_context
def data(context: click.Context) -> None:
    """Data sets: where they lie, fetching them, checking them."""
    help_alone(context)


@data.command("list")
@click.option("--data-dir", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True)
def data_list(data_dir: Path | None, as_json: bool) -> None:
    """List the data sets and where each was found."""
    from leakbench.data.commands import list_datasets  # noqa: PLC0415

    _print_rows(list_datasets(data_dir), as_json)


@data.command("fetch")
@click.argument("name")
@click.option("--data-dir", type=click.Path(path_type=Path))
def data_fetch(name: str, data_dir: Path | None) -> None:
    """Fetch the data set NAME from its official place, checked by sha256."""
    from leakbench.data.commands import fetch_dataset  # noqa: PLC0415
    from leakbench.progress import Reporter  # noqa: PLC0415

    reporter = Reporter()
    folder = fetch_dataset(name, data_dir, reporter)
    reporter.close()
    click.echo(f"{name}: {'embedded, nothing to fetch' if folder is None else folder}")


@data.command("verify")
@click.argument("name")
@click.option("--data-dir", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True)
def data_verify(name: str, data_dir: Path | None, as_json: bool) -> None:
    """Check every file of the data set NAME against its sha256; exit 1 where one differs."""
    from leakbench.data.commands import verify_dataset  # noqa: PLC0415

    rows = verify_dataset(name, data_dir)
    _print_rows(rows, as_json)
    if not all(row["ok"] for row in rows):
        sys.exit(1)


def _print_rows(rows: list[dict[str, Any]], as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(rows, indent=1, ensure_ascii=False))
        return
    if rows:
        click.echo("  ".join(rows[0]))
    for row in rows:
        click.echo("  ".join(str(value) for value in row.values()))
