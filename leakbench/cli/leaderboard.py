"""The commands of the leaderboard: make a card, or check one by measuring it again; write the page of all cards."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import click

from leakbench.cli.options import FOLDER, NEW_FOLDER, words

__all__ = ["card", "leaderboard"]

DIFFERS = 1

PATH = click.Path(path_type=Path)

OF_DATASET = "[default: the dataset's]"


def _sizes(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of `Asked`."""
    options = (
        click.option("--victims", type=int, help="victims at each leakage point [default: 10]"),
        click.option("--taps", help="leakage points [default: type-2,type-1,type-0]"),
        click.option("--protocols", help="that are measured [default: paper,live]"),
        click.option("--leak-rounds", help="live: rounds before the leak, as 0,last [default: last]"),
        click.option("--candidates", type=int, help="k of identification among k [default: 1000]"),
        click.option(
            "--iterations", type=int, help="iterations of each search of the attack [default: as --evaluations allows]"
        ),
        click.option(
            "--evaluations",
            type=int,
            help="most gradient evaluations of each victim, shared by the searches of the attack [default: 2000 without"
            " --iterations, no limit with it]",
        ),
        click.option("--leak-batch", type=int, help="examples in one leaked batch at types 1 and 0 [default: B]"),
        click.option("--observations", type=int, help="looks at each gradient, each with new noise [default: 1]"),
        click.option("--train-rounds", type=int, help=f"rounds of training {OF_DATASET}"),
        click.option("--clients", type=int, help=f"how many there are {OF_DATASET}"),
        click.option("--clients-per-round", type=int, help=f"how many take part in a round {OF_DATASET}"),
        click.option("--local-iterations", type=int, help=f"steps of a client in a round {OF_DATASET}"),
        click.option("--learning-rate", type=float, help=f"of the clients' steps {OF_DATASET}"),
        click.option("--batch", type=int, help=f"examples in a step {OF_DATASET}"),
        click.option("--model", help="the network that is trained [default: cnn; mlp for tables and small pictures]"),
        click.option("--seed", type=int, help="[default: 0]"),
        click.option("--trials", type=int, help="of the audit, with and without a canary each"),
    )
    for option in reversed(options):
        function = option(function)
    return function


@click.command()
@click.argument("defense", required=False)
@click.argument("dataset", required=False)
@click.option("--attack", help="name in the catalog [default: autoleak]")
@_sizes
@click.option(
    "--check",
    "checked",
    type=PATH,
    metavar="CARD.json",
    help="measure this card again instead and compare: exit code 1 where it differs",
)
@click.option(
    "--runs", type=NEW_FOLDER, default=Path("runs"), show_default=True, help="where cells are kept, each by its hash"
)
@click.option("--out", type=NEW_FOLDER, help="the folder of cards, for DATASET/DEFENSE.json [default: leaderboard]")
@click.option("--data-dir", type=FOLDER, help="where data sets lie [default: $LEAKBENCH_DATA, the user's cache]")
@click.option("--quiet", is_flag=True, help="no progress")
def card(
    defense: str | None,
    dataset: str | None,
    attack: str | None,
    checked: Path | None,
    runs: Path,
    out: Path | None,
    data_dir: Path | None,
    quiet: bool,
    **given: Any,
) -> None:
    """Measure DEFENSE on DATASET and write its card: attackers with and without its recipe, both protocols, an audit.

    A cell that was measured is not measured again; a killed command goes on where it stopped. --check repeats a card.
    """
    from leakbench.errors import InputError  # noqa: PLC0415
    from leakbench.leaderboard.asked import EVALUATIONS, Asked, searches  # noqa: PLC0415
    from leakbench.leaderboard.check import check  # noqa: PLC0415
    from leakbench.leaderboard.make import make_card  # noqa: PLC0415
    from leakbench.leaderboard.read import read_card, write_card  # noqa: PLC0415
    from leakbench.progress import Reporter  # noqa: PLC0415
    from leakbench.recipe import construct  # noqa: PLC0415

    asked = {name: value for name, value in given.items() if value is not None}
    reporter = Reporter(quiet=quiet)
    if checked is not None:
        beside = [*asked, *(name for name, value in (("attack", attack), ("out", out), ("defense", defense)) if value)]
        if beside:
            raise InputError(f"check: got {beside[0].replace('_', '-')} as well, but the card says what is measured")
        differences = check(read_card(checked), runs, data_dir, reporter)
        for line in differences:
            click.echo(line)
        many = "1 difference" if len(differences) == 1 else f"{len(differences)} differences"
        click.echo(f"check: {many}" if differences else "check: the card repeats")
        sys.exit(DIFFERS if differences else 0)
    if defense is None or dataset is None:
        raise InputError("card: got no DEFENSE and DATASET, expected both, as in `leakbench card sign faces`")
    for name in ("taps", "protocols", "leak_rounds"):
        if name in asked:
            asked[name] = words(name.replace("_", "-"), asked[name])
    if not {"iterations", "evaluations"} & asked.keys() and searches(attack or "autoleak"):
        asked["evaluations"] = EVALUATIONS
    try:
        sizes = construct(Asked, asked)
    except InputError as error:  # It names a field, as `leak_rounds.0`, not the option.
        field, _, said = str(error).partition(": ")
        raise InputError(f"{field.partition('.')[0].replace('_', '-')}: {said}") from None
    done = make_card(sizes, defense, dataset, attack or "autoleak", runs, data_dir, reporter)
    click.echo(f"card: {write_card(out or Path('leaderboard'), done)}")


@click.command()
@click.option("--cards", type=PATH, help="their folder [default: ./leaderboard, or the package's own]")
@click.option(
    "--out",
    type=PATH,
    default=Path("results/leaderboard.md"),
    show_default=True,
    help="the page: Markdown, or HTML where it ends in .html",
)
def leaderboard(cards: Path | None, out: Path) -> None:
    """Write the page of all cards: a table for each data set, ranked on the attacker who knows the defense."""
    from leakbench.errors import InputError  # noqa: PLC0415
    from leakbench.leaderboard.page import html_of, markdown_of  # noqa: PLC0415
    from leakbench.leaderboard.read import read_cards  # noqa: PLC0415
    from leakbench.recipe import catalog_folder  # noqa: PLC0415
    from leakbench.spared import check_spared  # noqa: PLC0415
    from leakbench.store import write_atomically  # noqa: PLC0415

    writers = {".md": markdown_of, ".html": html_of}
    if out.suffix not in writers:
        raise InputError(f"out: got {str(out)!r}, expected a name that ends in .md or .html")
    folder = cards or next((f for f in (Path("leaderboard"),) if f.is_dir()), catalog_folder("leaderboard"))
    place = Path(os.path.relpath(folder, out.parent)).as_posix()
    text = writers[out.suffix](read_cards(folder), place)
    check_spared("out", out)
    write_atomically(out, partial(_fill, text))
    click.echo(f"page: {out}")


def _fill(text: str, file: Path) -> None:
    file.write_text(text, encoding="utf-8")
