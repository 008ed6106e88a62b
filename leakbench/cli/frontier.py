"""The command that selects a defense and its setting."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Any

import click

from leakbench.cli.options import (
    FEDERATION,
    NEW_FOLDER,
    EngineAsked,
    check_fields,
    data_dir_option,
    limit_options,
    quiet_option,
    reporter_of,
    request_option,
    request_options,
    seconds,
    takes_engine,
    words,
)
from leakbench.core.errors import InputError
from leakbench.core.request import Request, at_least
from leakbench.core.words import check_requirements, factors_of

__all__ = ["frontier"]


@click.command()
@request_option("dataset", default=None, show_default=None, required=True)
@click.option(
    "--max-epsilon", type=float, metavar="E", help="Accept only settings with a valid epsilon of at most this number."
)
@click.option(
    "--observer",
    default="released",
    show_default=True,
    metavar="released|TAP",
    help="Observer of --max-epsilon: released (the released models), or a measured leakage point such as type-1.",
)
@click.option(
    "--defenses",
    show_default="fourteen, some of each kind",
    help="Names of defenses, separated by commas, or all.",
)
@click.option(
    "--noise-factors",
    show_default="1,0.3,0.1,0.03,0.01,0.001",
    help="Factors on the noise of each defense, separated by commas.",
)
@click.option(
    "--taps",
    default="type-1",
    show_default=True,
    help="Leakage points, separated by commas. The plot and the answer use the first.",
)
@request_option("victims", default=20, help="Number of victims of each setting.")
@click.option(
    "--identify",
    type=int,
    default=1000,
    show_default=True,
    help="Number of further victims that are only identified, not reconstructed; fewer if the dataset has fewer.",
)
@request_options("candidates", "iterations")
@limit_options
@request_option("leak_batch", default=1, show_default=True, help="Batch size of the leak.")
@click.option(
    "--seeds", type=int, default=1, show_default=True, help="Number of trainings of each setting, for its accuracy."
)
@request_option("seed", help="First seed; the attack uses it.")
@request_option("model")
@request_option("leak_model", help="Network that leaks.")
@request_option("train_rounds", help="Number of training rounds.")
@request_options(*FEDERATION, "batch")
@click.option(
    "--reach", type=float, metavar="A", help="Also print the largest noise of each defense that reaches this accuracy."
)
@click.option("--runs", type=NEW_FOLDER, default=Path("runs"), show_default=True, help="Folder of the measured cells.")
@click.option(
    "--out", type=NEW_FOLDER, default=Path("frontier"), show_default=True, help="Folder of the written pages."
)
@takes_engine
@data_dir_option
@click.option("--page", is_flag=True, help="Write the page from existing rows; measure nothing.")
@quiet_option
def frontier(
    dataset: str,
    max_epsilon: float | None,
    observer: str,
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
    quiet: bool,
    engine: EngineAsked,
    **sizes: Any,
) -> None:
    """Find the most accurate defense setting with identification at chance level.

    A setting qualifies if identification is not significantly above chance, if its accuracy is usable, and if its valid
    epsilon is at most --max-epsilon. Usable: at least half of what undefended training learns above the commonest class.
    If no setting qualifies, the answer says so. With --page, other requirements are answered from existing rows.

    Every defense is trained and attacked by `autoleak`, which knows the defense; a defense with noise is measured at every
    noise factor. Many more victims (--identify) are only identified, not reconstructed.

    Writes frontier_DATASET.csv, .md, .svg and .png into --out, and frontier_DATASET_best.yaml if a setting qualifies.
    A setting is measured once; run an interrupted command again to resume it.
    """
    from leakbench.core.recipe import check_name  # noqa: PLC0415

    leaks = words("taps", taps)
    sizes["budget"] = seconds("budget", sizes["budget"])
    check_fields({"dataset": dataset, "taps": leaks, "knows": "defense", **sizes})
    for name in [] if defenses in (None, "all") else words("defenses", defenses):
        check_name("defenses", name, "defenses")
    factors = None if noise_factors is None else factors_of(words("noise-factors", noise_factors))
    for name, number in (("seeds", seeds), ("identify", identify)):
        at_least(name, number, 1)
    if reach is not None and not 0 < reach <= 1:
        raise InputError(f"reach: got {reach}, expected an accuracy in (0, 1]")
    if not page:  # Before hours of measurement.
        check_requirements(max_epsilon, observer, leaks)
    from leakbench.frontier.choose import Requirements  # noqa: PLC0415
    from leakbench.frontier.frontier import frontier as measure  # noqa: PLC0415
    from leakbench.frontier.frontier import rows_file, store_of  # noqa: PLC0415
    from leakbench.frontier.grid import DEFENSES, FACTORS, defenses_of  # noqa: PLC0415
    from leakbench.frontier.write import reach_lines, said, write  # noqa: PLC0415
    from leakbench.study.study import Execution  # noqa: PLC0415

    request = Request(dataset=dataset, taps=leaks, knows="defense", **sizes)
    asked = DEFENSES if defenses is None else defenses_of(words("defenses", defenses))
    wanted = Requirements(max_epsilon, observer)
    reporter = reporter_of(quiet)

    def say(row: dict[str, Any]) -> None:
        reporter.close()
        click.echo(said(row))

    if page:
        rows = store_of(rows_file(out, dataset)).existing.read()
    else:
        command = shlex.join(["leakbench", *sys.argv[1:]])
        named = defenses is not None and defenses != "all"
        rows = measure(
            request,
            asked,
            FACTORS if factors is None else factors,
            seeds,
            identify,
            out,
            command,
            Execution(runs, data_dir, reporter, engine()),
            say,
            named,
        )
    for line in write(rows, out, dataset, wanted):
        click.echo(line)
    for line in [] if reach is None else reach_lines(rows, reach):
        click.echo(line)
