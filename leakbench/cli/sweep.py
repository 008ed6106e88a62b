"""The command of sweeps: the cells of a grid, by an engine."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from leakbench.cli.options import (
    NEW_FOLDER,
    check_names,
    data_dir_option,
    engine_options,
    parameters_of_slurm,
    places_from,
    quiet_option,
    runs_option,
)
from leakbench.core.errors import InputError
from leakbench.core.recipe import FOLDER, is_path, read_yaml
from leakbench.core.request import FIELDS, LISTS, check_word

__all__ = ["sweep"]


@click.command()
@click.argument("grid", type=click.Path(path_type=Path))
@engine_options("process")
@click.option("--retry-failed", is_flag=True, help="Run failed cells again.")
@runs_option
@click.option("--out", type=NEW_FOLDER, show_default="sweeps/GRID", help="Folder of the written tables.")
@data_dir_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@quiet_option
def sweep(
    grid: Path,
    engine: str,
    address: str | None,
    workers: int | None,
    threads: int | None,
    gpus_per_cell: float,
    slurm: tuple[str, ...],
    retry_failed: bool,
    runs: Path,
    out: Path | None,
    data_dir: Path | None,
    as_json: bool,
    quiet: bool,
) -> None:
    """Measure every cell of GRID.yaml and merge the results.

    Writes rows.parquet and cells.parquet. A cell is measured once; run an interrupted command again to resume it. A cell
    whose worker is lost is retried three times. A failed cell is recorded, and the exit code is 1; --retry-failed runs it
    again.
    """
    places = {"address": address, "workers": workers, "threads": threads, "gpus_per_cell": gpus_per_cell}
    places_from(engine, slurm, **places)
    _check_names(grid)
    from leakbench import api  # noqa: PLC0415

    swept = api.sweep(
        grid,
        engine=engine,
        address=address,
        workers=workers,
        threads_per_cell=threads,
        gpus_per_cell=gpus_per_cell,
        slurm=parameters_of_slurm(slurm),
        retry_failed=retry_failed,
        runs=runs,
        out=out,
        data_dir=data_dir,
        quiet=quiet,
        command=shlex.join(["leakbench", *sys.argv[1:]]),
    )
    if as_json:
        click.echo(json.dumps(swept.as_dict(), indent=1))
    else:
        again = f", {swept.retried} of them tried again" if swept.retried else ""
        click.echo(
            f"{swept.cells} cells: {swept.there + swept.found} were there, {swept.run} measured{again}, {swept.failed} failed"
        )
        click.echo("   ".join(f"{path.stem}: {path}" for path in swept.tables))
    if swept.failed:
        sys.exit(1)


def _check_names(path: Path) -> None:
    """Raise InputError for an unknown name of a recipe or another unknown word in a grid, before PyTorch is imported.

    All else that is wrong is found when the grid is read.
    """
    for fields in _fields(read_yaml(path)) if path.is_file() else ():
        for option, values in fields.items():
            for name in values if isinstance(values, list) else [values]:
                # The path of a recipe, or of a folder of pictures, begins next to the grid. Functions are refused later.
                if option in FIELDS and option not in LISTS and isinstance(name, str) and not is_path(name):
                    try:
                        check_names({} if name.startswith(FOLDER) else {option: name})
                        if ":" not in name or option not in ("model", "leak_model", "loss"):
                            check_word(option, name)
                    except InputError as error:
                        raise InputError(f"{path}: {error}") from None


def _fields(body: Any) -> Iterator[dict[str, Any]]:
    """Yield each mapping of a grid from fields to values."""
    if isinstance(body, dict):
        rows = body.get("rows")
        for part in (body, *(rows if isinstance(rows, list) else ())):
            if isinstance(part, dict):
                yield from (part[key] for key in ("given", "each") if isinstance(part.get(key), dict))
