"""The command that measures how fast leakbench is, beside references."""

from __future__ import annotations

import json
import os
import shlex
import sys
from pathlib import Path

import click

from leakbench.cli.options import FOLDER
from leakbench.errors import InputError

__all__ = ["bench"]


@click.command()
@click.option("--quick", is_flag=True, help="the same keys from less work: about a minute on two idle cores")
@click.option("--only", multiple=True, metavar="KEY", help="measure this key alone; may be given again")
@click.option("--repeats", type=int, help="how often each is measured [default: 5, of slow work 3; --quick: 3 and 1]")
@click.option(
    "--outer", type=int, help="iterations of CPL in attack_speedup, its own are 300 [default: 100; --quick: 3]"
)
@click.option(
    "--dataset",
    help="whose victims attack_speedup and attack_floor_ratio attack [default: faces]; published figures: lfw",
)
@click.option("--data-dir", type=FOLDER, help="where data sets lie [default: $LEAKBENCH_DATA, the user's cache]")
@click.option(
    "--page",
    type=FOLDER,
    metavar="FOLDER",
    help="also write bench.md and bench.json into this folder; keys not measured now stay as they stand there",
)
@click.option("--json", "as_json", is_flag=True, help="print one JSON object")
def bench(
    quick: bool,
    only: tuple[str, ...],
    repeats: int | None,
    outer: int | None,
    dataset: str | None,
    data_dir: Path | None,
    page: Path | None,
    as_json: bool,
) -> None:
    """Measure speed as ratios to references, in turns on the same machine: minimum, median, maximum.

    References are torch.optim.LBFGS one victim after another, a plain PyTorch loop, and, where they are installed
    (pip install 'leakbench[bench]'), Opacus and Flower's simulation; without them their keys are null, and the exit code
    stays 0. References run with PyTorch's threads as they are (OMP_NUM_THREADS) and with one, of which the faster counts; Flower's
    clients have a core each. For all alike the process keeps the memory that it freed, as every command of leakbench does.
    Figures of a machine with other work on it mean little: a warning says so.
    """
    from leakbench.bench.bench import bench as measure  # noqa: PLC0415
    from leakbench.bench.page import check_page, write_page  # noqa: PLC0415
    from leakbench.progress import Reporter  # noqa: PLC0415

    if page is not None and not os.access(page, os.W_OK | os.X_OK):
        raise InputError(f"page: {page} cannot be written to")
    if page is not None:
        check_page(page, quick)
    reporter = Reporter()
    command = shlex.join(["leakbench", *sys.argv[1:]])
    found = measure(only, quick, repeats, outer, dataset, data_dir, command, reporter)
    reporter.close()
    for line in [json.dumps(found.as_dict(), indent=1)] if as_json else found.lines():
        click.echo(line)
    if page is not None:
        write_page(found, page)
