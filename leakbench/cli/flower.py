"""The command that benchmarks somebody's Flower app."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import click

from leakbench.cli.options import FOLDER, normalise_by, success
from leakbench.errors import InputError

__all__ = ["flower", "shape_of"]


@click.command()
@click.argument("app_dir", type=FOLDER)
@click.option("--model", "builder", required=True, metavar="PKG.MODULE:BUILD", help="returns the app's torch.nn.Module")
@click.option("--shape", required=True, help="of one input: 3,32,32; of a record: 30")
@click.option("--classes", required=True, type=click.IntRange(min=2), help="of the labels")
@click.option("--mean", help="taken off inputs in [0, 1] before the network: a number, or one a channel")
@click.option("--std", help="by which they are then divided")
@click.option("--rounds", type=click.IntRange(min=1), help="[default: the app's num-server-rounds]")
@click.option("--clients", type=click.IntRange(min=1), default=10, show_default=True, help="nodes, N")
@click.option("--run-config", multiple=True, metavar="KEY=VALUE", help="of the app, in TOML; may be given again")
@click.option("--attack", default="autoleak", show_default=True, help="name in the catalog, or a .yaml of your own")
@click.option("--knows", help="what the attacker is told: oblivious, or defense (its recipe) [default: the attack's]")
@click.option("--iterations", type=int, help="iterations of an attack that searches [default: the recipe's]")
@click.option("--defense", help="the recipe of the app's DefenseMod, which the attacker is then told")
@click.option("--dataset", help="whose public examples the attacker has [default: made-up pictures]")
@click.option("--data-dir", type=FOLDER, help="where data sets lie [default: $LEAKBENCH_DATA, the user's cache]")
@click.option("--success", "threshold", help="as 'rmse<=0.1' [default: the dataset's; without one rmse<=0.1]")
@click.option("--leak-rounds", default="1", show_default=True, help="which rounds are attacked: 1,3 or all")
@click.option("--victims", type=click.IntRange(min=1), default=50, show_default=True, help="clients at most, each")
@click.option("--batch", type=click.IntRange(min=1), help="B of the clients [default: as observed]")
@click.option("--local-iterations", type=click.IntRange(min=1), help="L of the clients [default: as heard]")
@click.option("--learning-rate", type=float, help="of the clients [default: as heard]")
@click.option("--victim-mode", help="eval or train: how its normalisation computed [default: as observed, else eval]")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="of the attacker")
@click.option("--out", type=click.Path(path_type=Path), help="folder of the leaks [default: runs/flower-NAME]")
@click.option("--json", "as_json", is_flag=True, help="print one JSON list")
def flower(app_dir: Path, **given: Any) -> None:
    """Run the Flower app in APP_DIR here, without an engine, and print what an attacker gets at each leakage point.

    Its client and its strategy run as they are, so that whatever they do to updates is done. Type-1 is what a client sends,
    type-0 what arrives at the server; type-2, single examples' gradients, is attacked and answers are scored where the app's
    training loop calls leakbench.flower.observe, else the answers are kept and have no score. The leaks of an earlier run in the
    folder --out are replaced; a folder that holds anything else is refused.
    """
    from leakbench.flower.installed import check_flwr  # noqa: PLC0415

    check_flwr()
    from leakbench.flower.benchmark import Asked, benchmark  # noqa: PLC0415
    from leakbench.flower.cleared import REBUILT  # noqa: PLC0415
    from leakbench.own.table import as_json, print_rows, write_rebuilt  # noqa: PLC0415
    from leakbench.own.who import Who  # noqa: PLC0415

    json_wanted = given.pop("as_json")
    out = given.pop("out") or Path("runs") / f"flower-{app_dir.resolve().name}"
    given["normalise"] = normalise_by(given.pop("mean"), given.pop("std"))
    given.update(
        shape=shape_of(given["shape"]), success=success(given.pop("threshold")), run_config=_config(given["run_config"])
    )
    rows = benchmark(Asked(app_dir, out, who=Who.taken(given), **given))
    write_rebuilt(rows, out / REBUILT)
    if json_wanted:
        click.echo(json.dumps(as_json(rows), indent=1))
        return
    from rich.console import Console  # noqa: PLC0415

    columns = os.environ.get("COLUMNS", "")
    width = None if sys.stdout.isatty() else int(columns) if columns.isdecimal() else 140
    print_rows(rows, Console(width=width, highlight=False))
    click.echo(f"leaks: {out}   answers: {out / REBUILT}")


def shape_of(text: str) -> tuple[int, ...]:
    """Return the sides of an input; raises InputError for other text."""
    if not re.fullmatch(r"\s*[1-9]\d*(\s*,\s*[1-9]\d*)*\s*", text):
        raise InputError(f"shape: got {text!r}, expected positive numbers with commas between them, as 3,32,32")
    return tuple(int(side) for side in text.split(","))


def _config(pairs: tuple[str, ...]) -> dict[str, Any]:
    import tomllib  # noqa: PLC0415

    found: dict[str, Any] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        try:
            found[key.strip()] = tomllib.loads(f"value = {value}")["value"]
        except tomllib.TOMLDecodeError:
            raise InputError(
                f'run-config: got {pair!r}, expected KEY=VALUE with a value of TOML, as lr=0.1 or name="x"'
            ) from None
        if not equals or not key.strip():
            raise InputError(f"run-config: got {pair!r}, expected KEY=VALUE")
    return found
