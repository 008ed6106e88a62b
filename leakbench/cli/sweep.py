"""The command of sweeps: the cells of a grid, by an engine."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path

import click

from leakbench.cli.options import NEW_FOLDER, data_dir_option, quiet_option

__all__ = ["sweep"]


@click.command()
@click.argument("grid", type=click.Path(path_type=Path))
@click.option(
    "--engine", default="process", show_default=True, help="Engine: process (this machine), ray, or submitit (SLURM)."
)
@click.option("--address", show_default="a local Ray", help="HOST:PORT of the head of a Ray cluster.")
@click.option(
    "--workers", type=int, show_default="cores; ray: as many as fit", help="Number of cells that run in parallel."
)
@click.option(
    "--threads-per-cell",
    "threads",
    type=int,
    show_default="cores / workers; ray, submitit: 1",
    help="Number of cores per cell.",
)
@click.option(
    "--gpus-per-cell", type=float, default=0.0, show_default=True, help="Share of a GPU per cell, such as 0.25."
)
@click.option(
    "--slurm",
    multiple=True,
    metavar="NAME=VALUE",
    help="Parameter of sbatch for submitit, such as partition=gpu. Can be repeated.",
)
@click.option("--retry-failed", is_flag=True, help="Run failed cells again.")
@click.option(
    "--runs",
    type=NEW_FOLDER,
    default=Path("runs"),
    show_default=True,
    help="Folder of the measured cells, one folder per hash.",
)
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
    from leakbench.errors import InputError  # noqa: PLC0415
    from leakbench.study.address import check_address  # noqa: PLC0415

    if engine == "ray" and address is not None:
        check_address(address)  # Before PyTorch is imported, which takes as long again.

    from leakbench import api  # noqa: PLC0415

    asked: dict[str, str] = {}
    for text in slurm:
        name, equals, value = text.partition("=")
        if not (name and equals and value):
            raise InputError(f"slurm: got {text!r}, expected NAME=VALUE, as partition=gpu")
        asked[name] = value
    swept = api.sweep(
        grid,
        engine=engine,
        address=address,
        workers=workers,
        threads_per_cell=threads,
        gpus_per_cell=gpus_per_cell,
        slurm=asked,
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
