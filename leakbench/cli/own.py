"""The command that attacks an update that somebody has."""

from __future__ import annotations

import json
import os
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from leakbench.cli.flower import shape_of
from leakbench.cli.options import FOLDER, limit_options, normalise_by, seconds
from leakbench.cli.options import success as threshold
from leakbench.errors import InputError

if TYPE_CHECKING:
    from leakbench.own.table import Row

__all__ = ["attack"]

FILE = click.Path(path_type=Path)
NO_FOLDER = (".npz", ".npy", ".pt", ".pth", ".pkl", ".json", ".html")
"""Endings of who asks for a file that is not written."""


@click.command()
@click.option("--model", "builder", required=True, metavar="PKG.MODULE:BUILD", help="returns your torch.nn.Module")
@click.option(
    "--update",
    "updates",
    type=FILE,
    multiple=True,
    help="a gradient, as .grad holds it; more victims: again, or a folder",
)
@click.option(
    "--before",
    "befores",
    type=FILE,
    multiple=True,
    help="weights and buffers that the client got; one, or one a victim [default: the model's as it is built]",
)
@click.option("--after", "afters", type=FILE, multiple=True, help="weights after training, in the stead of --update")
@click.option("--shape", required=True, help="of one input: 3,32,32; of a record: 30")
@click.option("--classes", required=True, type=click.IntRange(min=2), help="of the labels")
@click.option("--batch", type=int, default=1, show_default=True, help="examples in a step, B")
@click.option("--learning-rate", type=float, help="of the client; then --update is what training added to the weights")
@click.option("--local-iterations", type=int, default=1, show_default=True, help="steps between, L")
@click.option("--client-optimizer", default="sgd", show_default=True, help="sgd, or adam with torch's defaults")
@click.option(
    "--victim-mode",
    default="eval",
    show_default=True,
    help="eval or train: how batch and instance normalisation computed",
)
@click.option("--tap", default="type-1", show_default=True, help="what the leakage point is: type-2, type-1 or type-0")
@click.option("--truth", type=FILE, help="arrays inputs (V, M, *shape) and labels (V, M), to score the answers")
@click.option("--mean", help="taken off inputs in [0, 1] before the network: a number, or one a channel")
@click.option("--std", help="by which they are then divided")
@click.option("--attack", default="autoleak", show_default=True, help="name in the catalog, or a .yaml of your own")
@click.option("--knows", help="what the attacker is told: oblivious, or defense (its recipe) [default: the attack's]")
@click.option("--iterations", type=int, help="iterations of an attack that searches [default: the recipe's]")
@limit_options
@click.option("--defense", help="the recipe that was applied, which the attacker is then told")
@click.option("--dataset", help="whose public examples the attacker has [default: made-up ones]")
@click.option("--data-dir", type=FOLDER, help="where data sets lie [default: $LEAKBENCH_DATA, the user's cache]")
@click.option("--success", help="as 'rmse<=0.1' [default: the dataset's; without one rmse<=0.1]")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="of the attacker")
@click.option(
    "--out", type=FILE, help="a folder for the report and the answers, or a new .safetensors file for the answers"
)
@click.option("--json", "as_json", is_flag=True, help="print JSON")
def attack(out: Path | None, as_json: bool, shape: str, success: str | None, **given: Any) -> None:
    """Rebuild what leaks from an update that you have, of any network; with --truth also score it.

    Files are .safetensors or .npz, {parameter: array}; pickles are refused. Inputs are in [0, 1], the loss is cross-entropy, its
    mean over the batch; what else is assumed is printed below the table.
    """
    if out is not None and out.suffix in NO_FOLDER:
        raise InputError(f"out: got {str(out)!r}, expected a folder, or a name that ends in .safetensors")
    from leakbench.own.answers_file import check_answers_file  # noqa: PLC0415
    from leakbench.own.asked import Asked, seen_of  # noqa: PLC0415
    from leakbench.own.assumed import assumed  # noqa: PLC0415
    from leakbench.own.attacked import attack_seen, with_limit  # noqa: PLC0415
    from leakbench.own.folder import attacked_into  # noqa: PLC0415
    from leakbench.own.suited import suited  # noqa: PLC0415
    from leakbench.own.table import Row, write_rebuilt  # noqa: PLC0415
    from leakbench.own.who import Who  # noqa: PLC0415
    from leakbench.store import check_out  # noqa: PLC0415

    alone = out is not None and out.suffix == ".safetensors"
    if out is not None and alone:
        check_answers_file(out, [*given["updates"], *given["befores"], *given["afters"]])
    elif out is not None:
        check_out(out)
    normalise = normalise_by(given.pop("mean"), given.pop("std"))
    given.update(success=threshold(success), budget=seconds("budget", given["budget"]))
    who = Who.taken(given)
    asked = Asked(shape=shape_of(shape), normalise=normalise, who=who, **given)
    seen, attacker = seen_of(asked)
    attacker, adapted = suited(attacker, seen)
    attacker = with_limit(attacker, seen)
    notes = "\n".join([*filter(None, [adapted]), *assumed(seen, attacker, bool(asked.befores))])
    where = ""
    if out is None or alone:
        found = attack_seen(seen, attacker)
    else:
        command = shlex.join(["leakbench", *sys.argv[1:]])
        found = attacked_into(out, {asked.tap: (seen, attacker)}, asked.who.names, command, notes)[asked.tap]
        where = f"answers: {out / 'reconstructions.safetensors'}   report: {out / 'report.html'}"
    row = Row(asked.tap, 1, found, seen.view.victims, seen.view.examples, notes)
    if out is not None and not where:
        write_rebuilt([row], out)
        where = f"answers: {out}"
    _print(row, as_json, where)


def _print(row: Row, as_json: bool, where: str) -> None:
    from rich.console import Console  # noqa: PLC0415

    from leakbench.own.table import as_json as described  # noqa: PLC0415
    from leakbench.own.table import print_rows  # noqa: PLC0415

    if as_json:
        click.echo(json.dumps(described([row])[0], indent=1, allow_nan=False))
        return
    columns = os.environ.get("COLUMNS", "")
    width = None if sys.stdout.isatty() else int(columns) if columns.isdecimal() else 140
    print_rows([row], Console(width=width, highlight=False))
    if where:
        click.echo(where)
