"""The command `leakbench flower`, which attacks a Flower app."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import click

from leakbench.cli.options import (
    FOLDER,
    check_names,
    data_dir_option,
    normalise_by,
    print_files,
    request_options,
    success,
    verbose_option,
)
from leakbench.core.errors import InputError
from leakbench.core.request import RECIPE

__all__ = ["flower", "shape_of"]


@click.command()
@click.argument("app_dir", type=FOLDER)
@click.option(
    "--model",
    "builder",
    required=True,
    metavar="PKG.MODULE:BUILD",
    help="Function that returns the app's torch.nn.Module.",
)
@click.option(
    "--shape", required=True, help="Shape of one input, such as 3,32,32; for a record, the number of features: 30."
)
@click.option("--classes", required=True, type=click.IntRange(min=2), help="Number of classes.")
@click.option("--mean", help="Mean that your pipeline subtracts from inputs in [0, 1]: one number, or one per channel.")
@click.option("--std", help="Standard deviation that your pipeline divides by: one number, or one per channel.")
@click.option(
    "--rounds",
    type=click.IntRange(min=1),
    show_default="the app's num-server-rounds",
    help="Number of training rounds.",
)
@click.option("--clients", type=click.IntRange(min=1), default=10, show_default=True, help="Number of Flower nodes, N.")
@click.option(
    "--run-config", multiple=True, metavar="KEY=VALUE", help="Entry of the app's run config, in TOML. Can be repeated."
)
@request_options("attack", "knows", "iterations")
@click.option("--defense", help=f"Defense of the app's DefenseMod, which the attacker then knows: {RECIPE}.")
@click.option("--dataset", show_default="synthetic images", help="Dataset of the attacker's public examples.")
@data_dir_option
@click.option(
    "--success",
    "threshold",
    show_default="the dataset's, else rmse<=0.1",
    help="Threshold of a reconstruction, such as 'rmse<=0.1'.",
)
@click.option(
    "--leak-rounds",
    default="1",
    show_default=True,
    help="Rounds that are attacked: numbers separated by commas, or all.",
)
@click.option(
    "--victims",
    type=click.IntRange(min=1),
    default=50,
    show_default=True,
    help="Largest number of attacked clients at each leakage point.",
)
@click.option("--batch", type=click.IntRange(min=1), show_default="as observed", help="Batch size of the clients, B.")
@click.option(
    "--local-iterations", type=click.IntRange(min=1), show_default="as observed", help="Local steps of the clients, L."
)
@click.option("--learning-rate", type=float, show_default="as observed", help="Learning rate of the clients.")
@click.option(
    "--victim-mode",
    show_default="as observed, else eval",
    help="Mode of the normalisation layers on the clients: eval or train.",
)
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Seed of the attacker.")
@click.option(
    "--out", type=click.Path(path_type=Path), show_default="runs/flower-NAME", help="Folder of the recorded leaks."
)
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list.")
@verbose_option
def flower(app_dir: Path, verbose: bool, **given: Any) -> None:
    """Run the Flower app in APP_DIR and attack it at each leakage point.

    The app's client and strategy run unchanged in this process, without a Flower engine. The client update (type-1) is
    what a client sends; the server-side update (type-0) is what arrives at the server. If the app's training loop calls
    leakbench.flower.observe, example gradients (type-2) are attacked as well and reconstructions are scored. Otherwise the
    reconstructions are kept without a score.

    Leaks of an earlier run in the folder --out are replaced. A folder with other content is refused.
    """
    check_names(given)
    from leakbench.flower import check_flwr  # noqa: PLC0415

    check_flwr()
    from leakbench.external.attacker import AttackerOptions  # noqa: PLC0415
    from leakbench.external.outcome import as_json, print_rows, write_reconstructions  # noqa: PLC0415
    from leakbench.flower.app import AppOptions, benchmark  # noqa: PLC0415
    from leakbench.flower.leaks import REBUILT  # noqa: PLC0415

    json_wanted = given.pop("as_json")
    out = given.pop("out") or Path("runs") / f"flower-{app_dir.resolve().name}"
    given["normalise"] = normalise_by(given.pop("mean"), given.pop("std"))
    given.update(
        shape=shape_of(given["shape"]), success=success(given.pop("threshold")), run_config=_config(given["run_config"])
    )
    rows = benchmark(AppOptions(app_dir, out, attacker=AttackerOptions.pop_from(given), **given))
    write_reconstructions(rows, out / REBUILT)
    if json_wanted:
        click.echo(json.dumps(as_json(rows), indent=1))
        return
    from rich.console import Console  # noqa: PLC0415

    from leakbench.report.table import printed_width  # noqa: PLC0415

    print_rows(rows, Console(width=None if sys.stdout.isatty() else printed_width(), highlight=False), verbose)
    print_files({"leaks": out, "reconstructions": out / REBUILT})


def shape_of(text: str) -> tuple[int, ...]:
    """Return the shape of an input, from numbers with commas between them.

    Raises:
        InputError: For other text.
    """
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
