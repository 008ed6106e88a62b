"""The command that says which defense to use, at what setting."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Any

import click

from leakbench.cli.options import FOLDER, NEW_FOLDER, limit_options, seconds, words

__all__ = ["frontier"]

SIZE = "[default: the dataset's]"


@click.command()
@click.option("--dataset", required=True, help="name in the catalog, or a .yaml of your own")
@click.option("--defenses", help="names with commas between them, or all [default: fourteen, some of each kind]")
@click.option("--noise-factors", help="what the noise is multiplied by [default: 1,0.3,0.1,0.03,0.01,0.001]")
@click.option("--taps", default="type-1", show_default=True, help="leakage points; the first is drawn and answered for")
@click.option("--victims", type=int, default=20, show_default=True, help="victims of each point")
@click.option(
    "--identify",
    type=int,
    default=1000,
    show_default=True,
    help="victims that only identification tries, or all there are",
)
@click.option("--candidates", type=int, default=1000, show_default=True, help="k of identification among k")
@click.option("--iterations", type=int, help="iterations of the attack [default: the recipe's]")
@limit_options
@click.option("--leak-batch", type=int, default=1, show_default=True, help="examples in one leaked batch")
@click.option(
    "--seeds", type=int, default=1, show_default=True, help="how often each point is trained, for its accuracy"
)
@click.option("--seed", type=int, default=0, show_default=True, help="the first of them, which is attacked")
@click.option("--model", help="the network that is trained [default: cnn; mlp for tables and small pictures]")
@click.option("--leak-model", help="the network that leaks [default: lenet_cpl, or mlp_sigmoid]")
@click.option("--train-rounds", type=int, help=f"rounds of training {SIZE}")
@click.option("--clients", type=int, help=f"how many there are, N {SIZE}")
@click.option("--clients-per-round", type=int, help=f"how many take part in a round, K_t {SIZE}")
@click.option("--local-iterations", type=int, help=f"steps of a client in a round, L {SIZE}")
@click.option("--learning-rate", type=float, help=f"of the clients' steps {SIZE}")
@click.option("--batch", type=int, help=f"examples in a step, B {SIZE}")
@click.option("--reach", type=float, metavar="A", help="also say the largest noise of each that reaches this accuracy")
@click.option("--runs", type=NEW_FOLDER, default=Path("runs"), show_default=True, help="where cells lie")
@click.option("--out", type=NEW_FOLDER, default=Path("frontier"), show_default=True, help="where the pages go")
@click.option("--data-dir", type=FOLDER, help="where data sets lie [default: $LEAKBENCH_DATA, the user's cache]")
@click.option("--page", is_flag=True, help="measure nothing, write the page of the rows that are there")
def frontier(
    dataset: str,
    defenses: str | None,
    noise_factors: str | None,
    taps: str,
    seeds: int,
    identify: int,
    reach: float | None,
    runs: Path,
    out: Path,
    data_dir: Path | None,
    page: bool,
    **sizes: Any,
) -> None:
    """Say which defense to use at what setting: the most accurate whose victims are not told from chance.

    Every defense, those with noise at every factor on it, is trained and attacked by `autoleak`, who knows the defense; of many
    more victims (--identify) it is only tried who they are. Writes frontier_DATASET.csv, .md, .svg, .png and, where a setting
    qualifies, frontier_DATASET_best.yaml into --out.

    A point that was measured is not measured again; a killed command goes on where it stopped.
    """
    from leakbench.cell import Request  # noqa: PLC0415
    from leakbench.cell.request import at_least  # noqa: PLC0415
    from leakbench.errors import InputError  # noqa: PLC0415
    from leakbench.frontier.frontier import frontier as measure  # noqa: PLC0415
    from leakbench.frontier.frontier import read_rows, rows_file  # noqa: PLC0415
    from leakbench.frontier.grid import DEFENSES, FACTORS, defenses_of, factors_of  # noqa: PLC0415
    from leakbench.frontier.write import reach_lines, said, write  # noqa: PLC0415
    from leakbench.progress import Reporter  # noqa: PLC0415
    from leakbench.reproduce.rows import there  # noqa: PLC0415

    leaks = words("taps", taps)
    sizes["budget"] = seconds("budget", sizes["budget"])
    request = Request(dataset=dataset, taps=leaks, knows="defense", **sizes)
    asked = DEFENSES if defenses is None else defenses_of(words("defenses", defenses))
    factors = FACTORS if noise_factors is None else factors_of(words("noise-factors", noise_factors))
    if reach is not None and not 0 < reach <= 1:
        raise InputError(f"reach: got {reach}, expected an accuracy in (0, 1]")
    if page:
        rows = read_rows(there(rows_file(out, dataset)))
    else:
        count = at_least("seeds", seeds, 1)
        command = shlex.join(["leakbench", *sys.argv[1:]])
        named = defenses is not None and defenses != "all"
        rows = measure(
            request,
            asked,
            factors,
            count,
            at_least("identify", identify, 1),
            runs,
            out,
            data_dir,
            command,
            Reporter(),
            lambda row: click.echo(said(row)),
            named,
        )
    for line in write(rows, out, dataset):
        click.echo(line)
    for line in [] if reach is None else reach_lines(rows, reach):
        click.echo(line)
