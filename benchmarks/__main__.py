"""The speed of leakbench against references: `python -m benchmarks`, from the folder of the repository."""

from __future__ import annotations

import json
import os
import shlex
import sys
from pathlib import Path

import click

from leakbench.cli import main
from leakbench.cli.options import FOLDER, data_dir_option, reporter_of
from leakbench.core.errors import InputError


@click.command()
@click.option("--quick", is_flag=True, help="Measure the same keys with less work: about one minute on two idle cores.")
@click.option(
    "--only",
    multiple=True,
    metavar="KEY",
    help="Measure only this key. Can be repeated. A wrong key prints all keys.",
)
@click.option(
    "--repeats", type=int, show_default="5, slow work 3; --quick: 3 and 1", help="Number of measurements of each key."
)
@click.option(
    "--outer",
    type=int,
    show_default="100; --quick: 3",
    help="Iterations of CPL in attack_speedup. CPL's own recipe takes 300.",
)
@click.option(
    "--dataset",
    show_default="faces",
    help="Dataset of the victims of attack_speedup, attack_floor_ratio and seconds_to_eta. Published figures use lfw.",
)
@data_dir_option
@click.option(
    "--page",
    type=FOLDER,
    metavar="FOLDER",
    help="Also write bench.md and bench.json into this folder. Keys that are not measured now keep their values.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
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
    """Measure speed as ratios to reference implementations on this machine.

    Prints the minimum, median and maximum of each ratio. leakbench and the reference take turns. The references are
    torch.optim.LBFGS for one victim after another, a plain PyTorch loop, Opacus, and Flower's simulation. Opacus and
    Flower are optional (pip install 'leakbench[bench]'): without them, their keys are null and the exit code is 0.

    PyTorch references run with the current number of threads (OMP_NUM_THREADS) and with one thread; the faster result
    counts. Each Flower client gets one core. All of them run with leakbench's allocator setting, which keeps freed memory.
    Other work on the machine distorts the figures; the command then prints a warning.
    """
    from benchmarks.speed.bench import bench as measure  # noqa: PLC0415
    from benchmarks.speed.page import check_page, write_page  # noqa: PLC0415

    if page is not None and not os.access(page, os.W_OK | os.X_OK):
        raise InputError(f"page: {page} cannot be written to")
    if page is not None:
        check_page(page, quick)
    reporter = reporter_of()
    command = shlex.join(["python", "-m", "benchmarks", *sys.argv[1:]])
    found = measure(only, quick, repeats, outer, dataset, data_dir, command, reporter)
    reporter.close()
    for line in [json.dumps(found.as_dict(), indent=1)] if as_json else found.lines():
        click.echo(line)
    if page is not None and not any(figure.values for figure in found.figures.values()):
        raise InputError(
            "page: got no figure, since every key is null; install what their reasons name, or choose other keys"
        )
    if page is not None:
        write_page(found, page)


if __name__ == "__main__":
    main(bench, "python -m benchmarks")
