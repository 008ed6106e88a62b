"""The command of sweeps: the cells of a grid, by an engine."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path

import click

from leakbench.cli.options import FOLDER, NEW_FOLDER

__all__ = ["sweep"]


@click.command()
@click.argument("grid", type=click.Path(path_type=Path))
@click.option("--engine", default="process", show_default=True, help="process (this machine), ray, submitit (SLURM)")
@click.option("--address", help="ray: HOST:PORT of a cluster's head [default: a Ray of this machine alone]")
@click.option("--workers", type=int, help="cells side by side [default: cores; ray: what there is room for]")
@click.option(
    "--threads-per-cell", "threads", type=int, help="cores of a cell [default: cores / workers; ray, submitit: 1]"
)
@click.option(
    "--gpus-per-cell", type=float, default=0.0, show_default=True, help="the share of a GPU that a cell takes, as 0.25"
)
@click.option("--slurm", multiple=True, metavar="NAME=VALUE", help="submitit: a parameter of sbatch, as partition=gpu")
@click.option("--retry-failed", is_flag=True, help="try cells again that ended in an error")
@click.option(
    "--runs",
    type=NEW_FOLDER,
    default=Path("runs"),
    show_default=True,
    help="where cells are kept, each by its hash",
)
@click.option("--out", type=NEW_FOLDER, help="where the tables are written [default: sweeps/GRID]")
@click.option("--data-dir", type=FOLDER, help="where data sets lie [default: $LEAKBENCH_DATA, the user's cache]")
@click.option("--json", "as_json", is_flag=True, help="print one JSON object")
@click.option("--quiet", is_flag=True, help="no progress")
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
    """Measure the cells of GRID.yaml, each once, and merge them into rows.parquet and cells.parquet.

    A cell that is whole is not measured again, whoever was killed before; one whose worker is lost is tried three times more; one
    that ends in an error is a record, which --retry-failed takes up again, and the exit code is then 1.
    """
    from leakbench.errors import InputError  # noqa: PLC0415
    from leakbench.study.address import check_address  # noqa: PLC0415

    if engine == "ray" and address is not None:
        check_address(address)  # Before PyTorch is imported, which takes as long again.

    from leakbench.progress import Reporter  # noqa: PLC0415
    from leakbench.study.engines import Places, engine_of  # noqa: PLC0415
    from leakbench.study.grid import read_grid  # noqa: PLC0415
    from leakbench.study.measure import sweep as measured  # noqa: PLC0415
    from leakbench.study.start import tasks_of  # noqa: PLC0415

    asked: dict[str, str] = {}
    for text in slurm:
        name, equals, value = text.partition("=")
        if not (name and equals and value):
            raise InputError(f"slurm: got {text!r}, expected NAME=VALUE, as partition=gpu")
        asked[name] = value
    read = read_grid(grid, "cuda" if gpus_per_cell else "cpu")
    folder = out or Path("sweeps") / grid.stem
    chosen = engine_of(engine, Places(address, workers, threads, gpus_per_cell, asked), folder / "submitit")
    command = shlex.join(["leakbench", *sys.argv[1:]])
    task_of = tasks_of(read, chosen, runs, data_dir, command)
    swept = measured(read, chosen, task_of, runs, folder, Reporter(quiet=quiet), retry_failed)
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
