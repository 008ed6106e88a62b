"""Options that several commands share, and how their words are read."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import click

from leakbench.errors import InputError
from leakbench.words import seconds, success, words

if TYPE_CHECKING:
    from leakbench.progress import Reporter
    from leakbench.study.engines import Placed

__all__ = [
    "FOLDER",
    "NEW_FOLDER",
    "EngineAsked",
    "attack_options",
    "check_names",
    "data_dir_option",
    "engine_from",
    "engine_options",
    "federation_options",
    "help_alone",
    "iterations_option",
    "knows_option",
    "limit_options",
    "normalise_by",
    "parameters_of_slurm",
    "print_files",
    "quiet_option",
    "reporter_of",
    "seconds",
    "success",
    "takes_engine",
    "verbose_option",
    "words",
]

FOLDER = click.Path(exists=True, file_okay=False, path_type=Path)


class _NewFolder(click.Path):
    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        # Path("") is the current folder, which an unset variable of a shell must not name.
        if value == "":
            raise InputError(f"{'folder' if param is None else param.name}: got '', expected the name of a folder")
        return super().convert(value, param, ctx)


NEW_FOLDER = _NewFolder(file_okay=False, path_type=Path)
"""A folder that the command makes if it is missing."""

NAME = "name in the catalog, or path of a .yaml recipe"
OF_DATASET = "the dataset's"
PROTOCOL = "Network that leaks. paper: a sigmoid LeNet at random weights, L = 1. live: the model that is trained."

POINTS = (
    "Leakage points, separated by commas: type-2 (example gradient), type-1 (client update), type-0 (server-side update),"
    " global (global update)."
)

data_dir_option = click.option(
    "--data-dir", type=FOLDER, show_default="$LEAKBENCH_DATA, else the user's cache", help="Folder of the datasets."
)


quiet_option = click.option("--quiet", is_flag=True, help="Print no progress.")


def reporter_of(quiet: bool = False, after: float = 0.0) -> Reporter:
    """Return the progress of the command that runs, which ends with the command, also if that fails.

    Args:
        after: Seconds of work before the first line in a file.
    """
    from leakbench.progress import Reporter  # noqa: PLC0415

    reporter = Reporter(quiet=quiet, after=after)
    click.get_current_context().call_on_close(reporter.close)
    return reporter


def print_files(files: Mapping[str, object]) -> None:
    """Print {what: path} on one line, or on one line each where that is wider than the terminal."""
    from leakbench.report.table import printed_width  # noqa: PLC0415

    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else printed_width()
    lines = [f"{what}: {path}" for what, path in files.items()]
    joined = "   ".join(lines)
    click.echo(joined if len(joined) <= width else "\n".join(lines))


def help_alone(context: click.Context) -> None:
    """Print a group's help where none of its commands was named."""
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


def normalise_by(mean: str | None, std: str | None) -> tuple[list[float], list[float]] | None:
    """Return the numbers of `--mean` and `--std`; None without any.

    Raises InputError for one without the other, and for words that are not numbers.
    """
    if mean is None and std is None:
        return None
    if mean is None or std is None:
        raise InputError(f"{'mean' if mean is None else 'std'}: expected --mean and --std together")
    found = []
    for field, text in (("mean", mean), ("std", std)):
        try:
            found.append([float(word) for word in text.split(",")])
        except ValueError:
            raise InputError(f"{field}: got {text!r}, expected numbers with commas between them") from None
    return found[0], found[1]


def check_names(given: Mapping[str, Any]) -> None:
    """Raise InputError for an unknown defense, data set or attack, before anything heavy is imported.

    Args:
        given: {option: its value}, with some of `defense`, `dataset` and `attack`; None is not checked.
    """
    from leakbench.recipe import check_name  # noqa: PLC0415

    for option in ("defense", "dataset", "attack"):
        if given.get(option) is not None:
            check_name(f"{option}s", given[option])


def _with(options: list[Callable[..., Any]]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed(options):
            function = option(function)
        return function

    return decorate


def engine_options(default: str | None) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return the decorator with the options of an engine.

    Args:
        default: The engine that is taken without --engine; None for this process, one cell after the other.
    """
    return _with(
        [
            click.option(
                "--engine",
                default=default,
                show_default=True if default else "this process",
                help="Engine that measures cells in parallel: process (this machine), ray, or submitit (SLURM).",
            ),
            click.option("--address", show_default="a local Ray", help="HOST:PORT of the head of a Ray cluster."),
            click.option(
                "--workers",
                type=int,
                show_default="cores; ray: as many as fit",
                help="Number of cells that run in parallel.",
            ),
            click.option(
                "--threads-per-cell",
                "threads",
                type=int,
                show_default="cores / workers; ray, submitit: 1",
                help="Number of cores per cell.",
            ),
            click.option(
                "--gpus-per-cell",
                type=float,
                default=0.0,
                show_default=True,
                help="Share of a GPU per cell, such as 0.25.",
            ),
            click.option(
                "--slurm",
                multiple=True,
                metavar="NAME=VALUE",
                help="Parameter of sbatch for submitit, such as partition=gpu. Can be repeated.",
            ),
        ]
    )


def parameters_of_slurm(given: Sequence[str]) -> dict[str, str]:
    """Return {name: value} of --slurm; raises InputError for a text without both."""
    found: dict[str, str] = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not (name and equals and value):
            raise InputError(f"slurm: got {text!r}, expected NAME=VALUE, as partition=gpu")
        found[name] = value
    return found


def engine_from(folder: Path, engine: str | None, slurm: Sequence[str], **places: Any) -> Placed | None:
    """Return the engine that the options of `engine_options` ask for; None without --engine.

    Args:
        folder: Folder of submitit's files.
        engine: Its name.
        slurm: Parameters of sbatch, each NAME=VALUE.
        places: `address`, `workers`, `threads` and `gpus_per_cell` of `leakbench.study.engines.Places`.

    Raises:
        InputError: The engine is unknown or cannot have these places, or places are given without one.
    """
    if engine is None:
        unset = {"gpus_per_cell": 0.0, "slurm": ()}
        given = [name for name, value in {**places, "slurm": slurm}.items() if value != unset.get(name)]
        if given:
            option = {"threads": "threads-per-cell"}.get(given[0], given[0].replace("_", "-"))
            raise InputError(f"{option}: got it without --engine; add --engine process, ray or submitit")
        return None
    from leakbench.study.on_ray import check_address  # noqa: PLC0415

    if engine == "ray" and places["address"] is not None:
        check_address(places["address"])  # Before PyTorch is imported, which takes as long again.
    from leakbench.study.engines import Places, engine_of  # noqa: PLC0415

    return engine_of(engine, Places(**places, slurm=parameters_of_slurm(slurm)), folder)


EngineAsked: TypeAlias = "Callable[[], Placed | None]"
"""Makes the engine that was asked for, see `engine_from`: PyTorch is imported with it, and so after names are checked."""


def takes_engine(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of an engine to a command with --runs; the command gets them as one `EngineAsked`, `engine`."""

    @wraps(function)
    def command(
        engine: str | None,
        address: str | None,
        workers: int | None,
        threads: int | None,
        gpus_per_cell: float,
        slurm: tuple[str, ...],
        **rest: Any,
    ) -> Any:
        places = {"address": address, "workers": workers, "threads": threads, "gpus_per_cell": gpus_per_cell}
        return function(engine=lambda: engine_from(rest["runs"] / "submitit", engine, slurm, **places), **rest)

    return engine_options(None)(command)


EVALUATIONS = (
    "Largest number of gradient evaluations per victim, shared by the searches of the attack. The results are the same on"
    " every machine. Closed forms, the separation of batches and rankings do not count."
)

BUDGET = (
    "Largest wall time of all attacks of the command: 60, 60s, 2m or 1h. It is divided among leakage points and victims. A search"
    " that reaches it returns its best reconstruction so far and warns: results then depend on the machine. A search"
    " that has begun takes at least one iteration. Rankings count, but neither they nor closed forms are stopped."
    " Preparation and scores can exceed it."
)

knows_option = click.option(
    "--knows",
    show_default="the attack's",
    help="Knowledge of the attacker: oblivious, or defense (it knows the defense's recipe).",
)
iterations_option = click.option(
    "--iterations", type=int, show_default="the recipe's", help="Number of iterations of an attack that searches."
)

verbose_option = click.option(
    "-v",
    "--verbose",
    is_flag=True,
    help="Also print the reasons of the verdicts, all columns, settings, bounds and notes.",
)

limit_options = _with(
    [
        click.option("--evaluations", type=int, show_default="no limit", help=EVALUATIONS),
        click.option("--budget", metavar="SECONDS", show_default="no limit", help=BUDGET),
    ]
)

federation_options = _with(
    [
        click.option("--defense", default="none", show_default=True, help=f"Defense: {NAME}."),
        click.option("--dataset", default="faces", show_default=True, help=f"Dataset: {NAME}."),
        click.option("--model", show_default="cnn; mlp for tables and small images", help="Network that is trained."),
        click.option(
            "--victim-mode", help="How clients run batch normalisation: train or eval. Required if the model has any."
        ),
        click.option(
            "--init",
            default="default",
            show_default=True,
            help="Initial weights: default (each network's own), torch, kaiming, xavier or uniform:<a>.",
        ),
        click.option(
            "--train-rounds", type=int, show_default=OF_DATASET, help="Number of training rounds; 0 skips training."
        ),
        click.option("--clients", type=int, show_default=OF_DATASET, help="Number of clients, N."),
        click.option(
            "--clients-per-round", type=int, show_default=OF_DATASET, help="Number of clients per round, K_t."
        ),
        click.option(
            "--local-iterations", type=int, show_default=OF_DATASET, help="Local steps per client and round, L."
        ),
        click.option("--learning-rate", type=float, show_default=OF_DATASET, help="Learning rate of the clients."),
        click.option(
            "--client-optimizer",
            show_default=OF_DATASET,
            help="Optimizer of the clients: sgd, or adam with PyTorch's defaults.",
        ),
        click.option("--batch", type=int, show_default=OF_DATASET, help="Batch size of a local step, B."),
        click.option("--dropout", type=float, show_default=OF_DATASET, help="Probability that a sampled client fails."),
        click.option(
            "--noise-factor",
            type=float,
            help="Factor on all noise of the defense (standard deviation sigma C), from 1e-6 to 1e6.",
        ),
        click.option(
            "--clip-factor",
            type=float,
            help="Factor on the clip norms C of the defense, from 1e-6 to 1e6; noise sigma C follows.",
        ),
        click.option("--epsilon", type=float, help="Choose the noise that gives this valid epsilon at delta 1e-5."),
        click.option(
            "--stop-at-epsilon", type=float, help="Stop training before the valid epsilon exceeds this value."
        ),
        click.option("--stop-at-delta", type=float, show_default="1e-5", help="Delta of --stop-at-epsilon."),
        click.option("--seed", type=int, default=0, show_default=True, help="Seed of every random draw."),
        data_dir_option,
    ]
)

attack_options = _with(
    [
        click.option("--attack", default="autoleak", show_default=True, help=f"Attack: {NAME}."),
        knows_option,
        click.option("--protocol", default="paper", show_default=True, help=PROTOCOL),
        click.option(
            "--leak-model",
            show_default="lenet_cpl, or mlp_sigmoid",
            help="Network that leaks under the paper protocol.",
        ),
        click.option("--taps", default="type-2,type-1,type-0", show_default=True, help=POINTS),
        click.option(
            "--victims", type=int, default=10, show_default=True, help="Number of victims at each leakage point."
        ),
        iterations_option,
        limit_options,
        click.option(
            "--leak-batch",
            type=click.IntRange(min=1),
            show_default="B",
            help="Batch size of a leaked client or server-side update.",
        ),
        click.option(
            "--leak-rounds",
            default="0",
            show_default=True,
            help="Live protocol: rounds trained before the leak, such as 0,1,last.",
        ),
        click.option(
            "--join-rounds",
            is_flag=True,
            help="Live protocol: give all leak rounds of the same examples to one attack.",
        ),
        click.option(
            "--no-pictures",
            "pictures",
            is_flag=True,
            flag_value=False,
            default=True,
            help="Keep scores only: no file contains an example or a reconstruction.",
        ),
        click.option(
            "--reads",
            default="gradient",
            show_default=True,
            help="Form of the update: gradient, or weights (the difference of weights in float32).",
        ),
        click.option(
            "--observations",
            type=int,
            default=1,
            show_default=True,
            help="Number of observations of each gradient, each with new noise.",
        ),
        click.option(
            "--networks",
            type=int,
            show_default="5",
            help="Paper protocol: number of initial weights over which the victims are divided.",
        ),
        click.option(
            "--success", show_default="calibrated", help="Threshold of a reconstruction, such as 'rmse<=0.1'."
        ),
        click.option(
            "--candidates", type=int, default=1000, show_default=True, help="Number of candidates k of identification."
        ),
        click.option(
            "--device",
            default="auto",
            show_default=True,
            help="Device: cpu, cuda, cuda:1, or auto (cuda if a GPU is available).",
        ),
        click.option(
            "--engine",
            default="fast",
            show_default=True,
            help="Gradient engine: fast (matrix products for sequential networks; draws the noise of a batch once) or reference"
            " (torch.func). The two draw different noise from the same distribution.",
        ),
        click.option(
            "--lpips-weights",
            type=FOLDER,
            help="Folder with torchvision's weights of squeezenet or alexnet, for LPIPS.",
        ),
    ]
)
