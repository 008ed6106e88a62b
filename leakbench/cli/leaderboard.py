"""The commands of the leaderboard: make a card, or check one by measuring it again; write the page of all cards."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import click

from leakbench.cli.options import (
    FEDERATION,
    NEW_FOLDER,
    EngineAsked,
    check_fields,
    check_names,
    data_dir_option,
    quiet_option,
    reporter_of,
    request_option,
    request_options,
    runs_option,
    takes_engine,
    with_options,
    words,
)
from leakbench.core.errors import InputError, check_file, nearest
from leakbench.core.request import PROTOCOLS, at_least
from leakbench.core.words import check_trials

__all__ = ["card", "leaderboard"]

DIFFERS = 1

PATH = click.Path(path_type=Path)


_sizes = with_options(
    [
        request_option("victims", default=None, show_default="10"),
        request_option("taps", default=None, show_default="type-2,type-1,type-0"),
        click.option("--protocols", show_default="paper,live", help="Protocols, separated by commas."),
        request_option(
            "leak_rounds",
            default=None,
            show_default="last",
            help="Live protocol: rounds trained before the leak, such as 0,last.",
        ),
        request_option("candidates", default=None, show_default="the dataset's, at most 1000"),
        request_option(
            "iterations",
            show_default="as --evaluations allows",
            help="Number of iterations of each search of the attack.",
        ),
        request_option(
            "evaluations",
            show_default="2000, or no limit with --iterations",
            help="Largest number of gradient evaluations per victim, shared by the searches of the attack.",
        ),
        request_option("leak_batch"),
        request_option("observations", default=None, show_default="1"),
        request_option("train_rounds", help="Number of training rounds."),
        request_options(*FEDERATION, "batch", "model"),
        request_option("seed", default=None, show_default="0"),
        click.option(
            "--seeds",
            type=int,
            show_default="1",
            help="Number of trainings, with consecutive seeds, over which the accuracy is averaged. Attacks read the first.",
        ),
        click.option(
            "--trials",
            type=int,
            show_default="1000000 drawn or 1000 executed",
            help="Number of audit trials with a canary, and as many without.",
        ),
    ]
)
"""The options of `CardSizes`; those that are not set are the card's, or the defaults."""


@click.command()
@click.argument("defense", required=False)
@click.argument("dataset", required=False)
@request_option("attack", default=None, show_default="autoleak")
@_sizes
@click.option(
    "--check",
    "checked",
    type=PATH,
    metavar="CARD.json",
    help="Measure this card again and compare. The exit code is 1 if it differs.",
)
@runs_option
@click.option(
    "--out", type=NEW_FOLDER, show_default="leaderboard", help="Folder of the cards: writes DATASET/DEFENSE.json."
)
@takes_engine
@data_dir_option
@quiet_option
def card(
    defense: str | None,
    dataset: str | None,
    attack: str | None,
    checked: Path | None,
    runs: Path,
    out: Path | None,
    data_dir: Path | None,
    quiet: bool,
    engine: EngineAsked,
    **given: Any,
) -> None:
    """Measure DEFENSE on DATASET and write its leaderboard card.

    A card contains attackers that know the defense and attackers that do not, under both protocols, and an audit. A cell is
    measured once; run an interrupted command again to resume it. --check measures an existing card again.
    """
    check_names({"defense": defense, "dataset": dataset, "attack": attack})
    asked = {name: value for name, value in given.items() if value is not None}
    for name in ("taps", "protocols", "leak_rounds"):
        if name in asked:
            asked[name] = words(name.replace("_", "-"), asked[name])
    check_fields(asked)
    for protocol in asked.get("protocols", ()):
        if protocol not in PROTOCOLS:
            raise InputError(f"protocols: got {protocol!r}{nearest(protocol, PROTOCOLS)}")
    at_least("seeds", asked.get("seeds", 1), 1)
    check_trials(asked.get("trials"))
    if checked is not None:
        check_file("check", checked)
    from leakbench.core.recipe import construct  # noqa: PLC0415
    from leakbench.leaderboard.asked import CardSizes, usual  # noqa: PLC0415
    from leakbench.leaderboard.check import check  # noqa: PLC0415
    from leakbench.leaderboard.make import make_card  # noqa: PLC0415
    from leakbench.leaderboard.read import read_card, write_card  # noqa: PLC0415
    from leakbench.study.study import Execution  # noqa: PLC0415

    execution = Execution(runs, data_dir, reporter_of(quiet), engine())
    if checked is not None:
        beside = [*asked, *(name for name, value in (("attack", attack), ("out", out), ("defense", defense)) if value)]
        if beside:
            raise InputError(f"check: got {beside[0].replace('_', '-')} as well, but the card says what is measured")
        differences = check(read_card(checked), execution)
        for line in differences:
            click.echo(line)
        many = "1 difference" if len(differences) == 1 else f"{len(differences)} differences"
        click.echo(f"check: {many}" if differences else "check: the card repeats")
        sys.exit(DIFFERS if differences else 0)
    if defense is None or dataset is None:
        lacks = "DEFENSE and DATASET" if defense is None else "DATASET"
        raise InputError(f"card: got no {lacks}, expected both, as in `leakbench card {defense or 'sign'} faces`")
    for name, value in usual(attack or "autoleak", dataset, data_dir).items():
        if name not in asked and not (name == "evaluations" and "iterations" in asked):
            asked[name] = value
    try:
        sizes = construct(CardSizes, asked)
    except InputError as error:  # It names a field, as `leak_rounds.0`, not the option.
        field, _, said = str(error).partition(": ")
        raise InputError(f"{field.partition('.')[0].replace('_', '-')}: {said}") from None
    done = make_card(sizes, defense, dataset, attack or "autoleak", execution)
    click.echo(f"card: {write_card(out or Path('leaderboard'), done)}")


@click.command()
@click.option("--cards", type=PATH, show_default="./leaderboard, else the package's own", help="Folder of the cards.")
@click.option(
    "--out",
    type=PATH,
    default=Path("results/leaderboard.md"),
    show_default=True,
    help="Page to write: Markdown (.md) or HTML (.html).",
)
def leaderboard(cards: Path | None, out: Path) -> None:
    """Write the leaderboard: one table of cards for each dataset.

    Defenses are ranked by the attacker that knows the defense.
    """
    from leakbench.core.recipe import catalog_folder  # noqa: PLC0415
    from leakbench.leaderboard.page import html_of, markdown_of  # noqa: PLC0415
    from leakbench.leaderboard.read import read_cards  # noqa: PLC0415
    from leakbench.storage.atomic import write_text  # noqa: PLC0415
    from leakbench.storage.manifest_file import check_spared  # noqa: PLC0415

    writers = {".md": markdown_of, ".html": html_of}
    if out.suffix not in writers:
        raise InputError(f"out: got {str(out)!r}, expected a name that ends in .md or .html")
    folder = cards or next((f for f in (Path("leaderboard"),) if f.is_dir()), catalog_folder("leaderboard"))
    place = Path(os.path.relpath(folder, out.parent)).as_posix()
    text = writers[out.suffix](read_cards(folder), place)
    check_spared("out", out)
    write_text(out, text)
    click.echo(f"page: {out}")
