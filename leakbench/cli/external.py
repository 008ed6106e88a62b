"""The command `leakbench attack`, which attacks external updates."""

from __future__ import annotations

import json
import shlex
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from leakbench.cli.flower import shape_of
from leakbench.cli.options import (
    check_fields,
    data_dir_option,
    limit_options,
    normalise_by,
    print_files,
    quiet_option,
    reporter_of,
    request_options,
    seconds,
    verbose_option,
)
from leakbench.cli.options import success as threshold
from leakbench.core.errors import InputError, check_file
from leakbench.core.leakage_points import OWN

if TYPE_CHECKING:
    from leakbench.external.outcome import Outcome

from leakbench.core.request import RECIPE, check_model
from leakbench.storage.manifest_file import check_out

__all__ = ["attack"]

FILE = click.Path(path_type=Path)
NO_FOLDER = (".npz", ".npy", ".pt", ".pth", ".pkl", ".json", ".html")
"""Endings of file formats that `--out` does not write."""


@click.command()
@click.option(
    "--model",
    "builder",
    required=True,
    metavar="PKG.MODULE:BUILD",
    help=(
        "Function that returns your torch.nn.Module; or, with --before, a name in the catalog, torchvision:NAME, timm:NAME or"
        " hf:FOLDER."
    ),
)
@click.option(
    "--update",
    "updates",
    type=FILE,
    multiple=True,
    help="Gradient of one victim, as in .grad. For several victims, repeat the option or give a folder.",
)
@click.option(
    "--before",
    "befores",
    type=FILE,
    multiple=True,
    show_default="the model as it is built",
    help="Weights and buffers that the client received: one file, or one per victim.",
)
@click.option("--after", "afters", type=FILE, multiple=True, help="Weights after training, instead of --update.")
@click.option("--shape", help="Shape of one input, such as 3,32,32; for a record, the number of features: 30.")
@click.option(
    "--tokens",
    type=click.IntRange(min=1),
    help="Number of tokens of a sentence with its padding, instead of --shape, for a language model.",
)
@click.option(
    "--vocabulary",
    type=FILE,
    show_default="the folder's, else the dataset's",
    help="Tokens of a language model: a file with one word piece per line, or a tokenizer.json.",
)
@click.option("--classes", type=click.IntRange(min=2), help="Number of classes.")
@click.option(
    "--targets",
    help=(
        "What the network predicts instead of a class: outputs as kind:number, of the kinds classes, labels (0 or 1) and numbers. "
        "labels:1x64x64,classes:10 is one label for each of 64 x 64 pixels, and one of 10 classes."
    ),
)
@click.option("--loss", help="Your loss of outputs and targets, with --targets: package.module:function.")
@click.option("--batch", type=int, default=1, show_default=True, help="Batch size of a local step, B.")
@click.option(
    "--learning-rate",
    type=float,
    help="Learning rate of the client. With it, --update is the change of the weights, not a gradient.",
)
@click.option("--local-iterations", type=int, default=1, show_default=True, help="Local steps of the client, L.")
@click.option(
    "--client-optimizer",
    default="sgd",
    show_default=True,
    help="Optimizer of the client: sgd, or adam with PyTorch's defaults.",
)
@click.option(
    "--momentum", type=float, default=0.0, show_default=True, help="Momentum of the client's SGD, from a fresh state."
)
@click.option(
    "--weight-decay",
    type=float,
    default=0.0,
    show_default=True,
    help="Weight decay of the client: this number times the weights is added to each gradient.",
)
@click.option(
    "--victim-mode",
    default="eval",
    show_default=True,
    help="Mode of the batch and instance normalisation layers on the client: eval or train.",
)
@click.option(
    "--statistics",
    default="batch",
    show_default=True,
    help=(
        "Statistics of batch normalization with which a guess is compared, for --victim-mode train: batch (the running ones that "
        "the client received), proxy (those of public examples), or inferred (the client's batch, solved from the running ones in "
        "--after)."
    ),
)
@click.option(
    "--tap",
    default="type-1",
    show_default=True,
    help="Leakage point: type-2 (example gradient), type-1 (client update) or type-0 (server-side update).",
)
@click.option(
    "--truth",
    type=FILE,
    help="File with the true inputs (V, M, *shape) and labels (V, M), or targets (V, M, k), to score the reconstructions.",
)
@click.option("--mean", help="Mean that your pipeline subtracts from inputs in [0, 1]: one number, or one per channel.")
@click.option("--std", help="Standard deviation that your pipeline divides by: one number, or one per channel.")
@request_options("attack", "knows", "iterations")
@limit_options
@click.option("--defense", help=f"Defense that was applied, which the attacker then knows: {RECIPE}.")
@click.option("--dataset", show_default="synthetic examples", help="Dataset of the attacker's public examples.")
@data_dir_option
@click.option(
    "--success",
    show_default="the dataset's, else rmse<=0.1",
    help="Threshold of a reconstruction, such as 'rmse<=0.1'; for texts 'edit_distance<=0.1' or exact.",
)
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Seed of the attacker.")
@click.option(
    "--out", type=FILE, help="Folder for the report and the reconstructions, or a new .safetensors file for the latter."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@quiet_option
@verbose_option
def attack(
    out: Path | None,
    as_json: bool,
    quiet: bool,
    verbose: bool,
    shape: str | None,
    tokens: int | None,
    success: str | None,
    **given: Any,
) -> None:
    """Reconstruct what leaks from an update of your own network.

    With --truth, the reconstructions are scored. Files are .safetensors or .npz and contain {parameter: array}; pickles
    are refused. Inputs are in [0, 1], and the loss is the mean over the batch, cross-entropy without --targets. All other
    assumptions are printed with -v, or if no leak is found.

    With --out FOLDER, the searches are saved every few seconds; run an interrupted command again to resume it. The
    reconstructions are saved before they are scored; run it again with another --truth to score them without a search.
    """
    began = time.monotonic()  # The budget includes the imports.
    given.update(success=threshold(success), budget=seconds("budget", given["budget"]))
    # Its --targets and --loss are those of the user's network.
    check_fields({name: value for name, value in given.items() if name not in ("targets", "loss", "success")})
    check_model("model", given["builder"])
    if given["tap"] not in OWN:
        raise InputError(f"tap: got {given['tap']!r}, expected one of {', '.join(OWN)}")
    for field in ("update", "before", "after"):
        for path in given[f"{field}s"]:
            if not path.exists():
                raise InputError(f"{field}: no file or folder {str(path)!r}")
    for field in ("truth", "vocabulary"):
        if given[field] is not None:
            check_file(field, given[field])
    normalise = normalise_by(given.pop("mean"), given.pop("std"))
    if (shape is None) == (tokens is None):
        raise InputError(f"shape: got {'none' if shape is None else '--tokens too'}; give one of --shape or --tokens")
    sizes = shape_of(str(tokens) if shape is None else shape)
    if out is not None and out.suffix in NO_FOLDER:
        raise InputError(f"out: got {str(out)!r}, expected a folder, or a name that ends in .safetensors")
    folder = None if out is None or out.suffix == ".safetensors" else out
    if folder is not None:
        check_out(folder)
    from leakbench.external.attack import QUICK, attack_traces  # noqa: PLC0415
    from leakbench.external.attacker import AttackerOptions  # noqa: PLC0415
    from leakbench.external.outcome import check_new_file, write_reconstructions  # noqa: PLC0415
    from leakbench.external.update import UpdateFiles  # noqa: PLC0415

    if folder is None and out is not None:
        check_new_file(out, [*given["updates"], *given["befores"], *given["afters"]])
    options = AttackerOptions.pop_from(given)
    trace, attacker = UpdateFiles(shape=sizes, normalise=normalise, **given).read(options)
    command = shlex.join(["leakbench", *sys.argv[1:]])
    reporter = reporter_of(quiet, after=QUICK)
    points = {trace.tap: (trace, attacker)}
    found = attack_traces(points, folder, options.names, command, reporter, began)[trace.tap]
    where = dict[str, Path]()
    if folder is not None:
        where = {"reconstructions": folder / "reconstructions.safetensors", "report": folder / "report.html"}
    elif out is not None:
        write_reconstructions([found], out)
        where = {"reconstructions": out}
    _print(found, as_json, verbose, where)


def _print(found: Outcome, as_json: bool, verbose: bool, where: Mapping[str, Path]) -> None:
    from rich.console import Console  # noqa: PLC0415

    from leakbench.external.outcome import as_json as described  # noqa: PLC0415
    from leakbench.external.outcome import print_rows  # noqa: PLC0415
    from leakbench.report.table import printed_width  # noqa: PLC0415

    if as_json:
        click.echo(json.dumps(described([found])[0], indent=1, allow_nan=False))
        return
    print_rows([found], Console(width=None if sys.stdout.isatty() else printed_width(), highlight=False), verbose)
    if where:
        print_files(where)
