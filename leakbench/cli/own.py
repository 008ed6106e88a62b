"""The command that attacks an update that somebody has."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from leakbench.cli.flower import shape_of
from leakbench.cli.options import FOLDER, success
from leakbench.errors import InputError

if TYPE_CHECKING:
    from leakbench.own.table import Row

__all__ = ["attack"]

FILE = click.Path(path_type=Path)


@click.command()
@click.option("--model", "builder", required=True, metavar="PKG.MODULE:BUILD", help="returns your torch.nn.Module")
@click.option(
    "--update", "updates", type=FILE, multiple=True, help="a gradient, as .grad holds it; again for more victims"
)
@click.option(
    "--before", type=FILE, help="weights and buffers that the client got [default: the model's as it is built]"
)
@click.option("--after", "afters", type=FILE, multiple=True, help="weights after training, in the stead of --update")
@click.option("--shape", required=True, help="of one input: 3,32,32; of a record: 30")
@click.option("--classes", required=True, type=click.IntRange(min=2), help="of the labels")
@click.option("--batch", type=int, default=1, show_default=True, help="examples in a step, B")
@click.option("--learning-rate", type=float, help="of SGD; then --update is what training added to the weights")
@click.option("--local-iterations", type=int, default=1, show_default=True, help="steps between, L")
@click.option("--tap", default="type-1", show_default=True, help="what the leakage point is: type-2, type-1 or type-0")
@click.option("--truth", "true", type=FILE, help="arrays inputs (V, M, *shape) and labels (V, M), to score the answers")
@click.option(
    "--attack", "name", default="autoleak", show_default=True, help="name in the catalog, or a .yaml of your own"
)
@click.option("--defense", help="the recipe that was applied, which the attacker is then told")
@click.option("--dataset", help="whose public examples the attacker has [default: made-up ones]")
@click.option("--data-dir", type=FOLDER, help="where data sets lie [default: $LEAKBENCH_DATA, the user's cache]")
@click.option("--success", "threshold", help="as 'rmse<=0.1' [default: the dataset's; without one rmse<=0.1]")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="of the attacker")
@click.option("--out", type=FILE, help="write the answers into this .safetensors file")
@click.option("--json", "as_json", is_flag=True, help="print JSON")
def attack(**given: Any) -> None:
    """Rebuild what leaks from an update that you have, of any network; with --truth also score it.

    Files are .safetensors or .npz, {parameter: array}; pickles are refused. Inputs are in [0, 1], the loss is cross-entropy, its
    mean over the batch; batch normalisation is taken by its running statistics.
    """
    from rich.console import Console  # noqa: PLC0415

    from leakbench.own.table import as_json, print_rows, write_rebuilt  # noqa: PLC0415

    out, json_wanted = given.pop("out"), given.pop("as_json")
    if out is not None and out.suffix != ".safetensors":
        raise InputError(f"out: got {str(out)!r}, expected a name that ends in .safetensors")
    row = _attacked(given)
    if out is not None:
        write_rebuilt([row], out)
    if json_wanted:
        click.echo(json.dumps(as_json([row])[0], indent=1))
        return
    columns = os.environ.get("COLUMNS", "")
    width = None if sys.stdout.isatty() else int(columns) if columns.isdecimal() else 140
    print_rows([row], Console(width=width, highlight=False))
    if out is not None:
        click.echo(f"answers: {out}")


def _attacked(given: dict[str, Any]) -> Row:
    from torch import nn  # noqa: PLC0415

    from leakbench.imported import import_function, said  # noqa: PLC0415
    from leakbench.own.arrays import read_arrays  # noqa: PLC0415
    from leakbench.own.attack import attacker_of  # noqa: PLC0415
    from leakbench.own.attacked import attack_seen  # noqa: PLC0415
    from leakbench.own.leak import Trained, leaked, truth_of  # noqa: PLC0415
    from leakbench.own.named import as_parameters  # noqa: PLC0415
    from leakbench.own.table import Row  # noqa: PLC0415

    how = Trained(given["batch"], given["local_iterations"], given["learning_rate"])
    shape, classes = shape_of(given["shape"]), given["classes"]
    threshold = success(given["threshold"])
    told = given["defense"], given["dataset"], given["data_dir"]
    attacker = attacker_of(given["name"], *told, threshold, given["seed"])
    if bool(given["updates"]) == bool(given["afters"]):
        raise InputError("update: expected either --update, or --before and --after")
    if given["afters"] and (given["before"] is None or how.learning_rate is None):
        raise InputError("after: expected --before and --learning-rate beside it")
    try:
        model = import_function("model", given["builder"], str(Path.cwd()))()
    except InputError:
        raise
    except (Exception, SystemExit) as error:
        raise InputError(f"model: {given['builder']!r} failed: {said(error)}") from None
    if not isinstance(model, nn.Module) or not list(model.parameters()):
        raise InputError(
            f"model: {given['builder']!r} returned {type(model).__name__}, expected a torch.nn.Module with parameters"
        )
    before = None if given["before"] is None else read_arrays("before", given["before"])
    if given["afters"]:
        start = as_parameters("before", model, before or {})
        ended = (as_parameters("after", model, read_arrays("after", path)) for path in given["afters"])
        updates = [{name: one[name] - p for name, p in start.items()} for one in ended]
    else:
        updates = [read_arrays("update", path) for path in given["updates"]]
    examples = 1 if given["tap"] == "type-2" else how.batch * how.steps
    read = None if given["true"] is None else read_arrays("truth", given["true"])
    truth = None if read is None else truth_of(read, len(updates), examples, shape, classes)
    seen = leaked(model, updates, shape, classes, how, before, given["tap"], truth)
    notes = (
        []
        if before is not None
        else ["the network's weights are those with which the model is built; pass --before for others"]
    )
    notes += [] if truth is not None else ["no --truth, so that nothing is scored"]
    notes += [f"{name}: evaluation mode, by its running statistics" for name in _norms(model)]
    return Row(given["tap"], 1, attack_seen(seen, attacker), len(updates), examples, "; ".join(notes))


def _norms(model: Any) -> list[str]:
    from torch.nn.modules.batchnorm import _BatchNorm  # noqa: PLC0415

    found = [name for name, module in model.named_modules() if isinstance(module, _BatchNorm)]
    return found[:1]
