"""Options that several commands share, and how their words are read."""

from __future__ import annotations

import dataclasses
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, get_args

import click
from pydantic.fields import FieldInfo

from leakbench.core.errors import InputError
from leakbench.core.request import FIELDS, FederationFields, Request, Unset, check_request, metadata, number_of
from leakbench.core.words import seconds, success, words

if TYPE_CHECKING:
    from leakbench.core.progress import Reporter
    from leakbench.study.engines import Placed
    from leakbench.study.workers import Places

__all__ = [
    "FEDERATION",
    "FOLDER",
    "NEW_FOLDER",
    "EngineAsked",
    "attack_options",
    "check_fields",
    "check_names",
    "data_dir_option",
    "engine_from",
    "engine_options",
    "federation_options",
    "help_alone",
    "limit_options",
    "normalise_by",
    "parameters_of_slurm",
    "places_from",
    "print_files",
    "quiet_option",
    "reporter_of",
    "request_option",
    "request_options",
    "runs_option",
    "seconds",
    "success",
    "takes_engine",
    "verbose_option",
    "with_options",
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

data_dir_option = click.option(
    "--data-dir", type=FOLDER, show_default="$LEAKBENCH_DATA, else the user's cache", help="Folder of the datasets."
)

runs_option = click.option(
    "--runs",
    type=NEW_FOLDER,
    default=Path("runs"),
    show_default=True,
    help="Folder of the measured cells, one folder per hash.",
)

quiet_option = click.option("--quiet", is_flag=True, help="Print no progress.")


def reporter_of(quiet: bool = False, after: float = 0.0) -> Reporter:
    """Return the progress of the command that runs, which ends with the command, also if that fails.

    Args:
        after: Seconds of work before the first line.
    """
    from leakbench.core.progress import Reporter  # noqa: PLC0415

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


def check_fields(given: Mapping[str, Any]) -> None:
    """Raise InputError for an unknown recipe, and for a wrong word or number of a field, before PyTorch is imported.

    Args:
        given: {parameter: its value}; those that are not fields of a `Request` are not checked.
    """
    check_names(given)
    check_request(Request(**{name: value for name, value in given.items() if name in FIELDS and value is not None}))


def check_names(given: Mapping[str, Any]) -> None:
    """Raise InputError for an unknown defense, data set or attack, before anything heavy is imported.

    Args:
        given: {option: its value}, with some of `defense`, `dataset` and `attack`; None is not checked.
    """
    from leakbench.core.recipe import check_name  # noqa: PLC0415

    for option in ("defense", "dataset", "attack"):
        if given.get(option) is not None:
            check_name(f"{option}s", given[option])


def with_options(options: list[Callable[..., Any]]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return the decorator that adds these options to a command, in their order."""

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
    return with_options(
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


def places_from(engine: str | None, slurm: Sequence[str], **places: Any) -> Places | None:
    """Return the checked places that the options of `engine_options` ask for; None without --engine. PyTorch is not imported.

    Args:
        engine: Name of the engine.
        slurm: Parameters of sbatch, each NAME=VALUE.
        places: `address`, `workers`, `threads` and `gpus_per_cell` of `leakbench.study.workers.Places`.

    Raises:
        InputError: The engine is unknown, not installed or cannot have these places, or places are given without one.
    """
    if engine is None:
        unset = {"gpus_per_cell": 0.0, "slurm": ()}
        given = [name for name, value in {**places, "slurm": slurm}.items() if value != unset.get(name)]
        if given:
            option = {"threads": "threads-per-cell"}.get(given[0], given[0].replace("_", "-"))
            raise InputError(f"{option}: got it without --engine; add --engine process, ray or submitit")
        return None
    from leakbench.study.on_ray import check_address  # noqa: PLC0415
    from leakbench.study.workers import Places, check_places  # noqa: PLC0415

    found = Places(**places, slurm=parameters_of_slurm(slurm))
    check_places(engine, found)
    if engine == "ray" and found.address is not None:
        check_address(found.address)
    return found


def engine_from(folder: Path, engine: str | None, places: Places | None) -> Placed | None:
    """Return the engine that the options of `engine_options` ask for; None without --engine.

    Args:
        folder: Folder of submitit's files.
        engine: Its name.
        places: As `places_from` returns them.

    Raises:
        InputError: The engine is not installed, or this machine does not have its places.
    """
    if engine is None or places is None:
        return None
    from leakbench.study.engines import engine_of  # noqa: PLC0415
    from leakbench.study.workers import check_installed  # noqa: PLC0415

    found = engine_of(engine, places, folder)
    if engine != "process":
        check_installed(engine)  # Before anything is planned or printed.
    return found


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
        checked = places_from(engine, slurm, **places)
        return function(engine=lambda: engine_from(rest["runs"] / "submitit", engine, checked), **rest)

    return engine_options(None)(command)


verbose_option = click.option(
    "-v",
    "--verbose",
    is_flag=True,
    help="Also print the reasons of the verdicts, all columns, settings, bounds and notes.",
)


def request_option(name: str, **changes: Any) -> Callable[..., Any]:
    """Return the option of a field of `leakbench.core.request.Request`: its type, default and help are the field's.

    Args:
        name: The field.
        changes: Arguments of `click.option` that differ in a command.
    """
    kind, *extras = metadata(name)
    default = DEFAULTS[name]
    found: dict[str, Any] = {"help": next(each.description for each in extras if isinstance(each, FieldInfo))}
    for each in extras:
        if isinstance(each, Unset):
            found["show_default"] = each.shown
    if kind is bool:
        found["is_flag"] = True
    elif Path in get_args(kind):
        found["type"] = FOLDER
    elif name not in AS_TEXT:
        found |= {"type": number} if (number := number_of(name)) else {}
    if default is not None and kind is not bool:
        found |= {"default": ",".join(default) if isinstance(default, tuple) else default, "show_default": True}
    return click.option(f"--{name.replace('_', '-')}", **(found | changes))


def request_options(*names: str) -> Callable[..., Any]:
    """Return the options of some fields of a request, as they are declared there."""
    return with_options([request_option(name) for name in names])


DEFAULTS = {field.name: field.default for field in dataclasses.fields(Request)}
AS_TEXT = ("success", "budget")
"""Numbers that the command line reads with a unit, see `leakbench.core.words`."""

FEDERATION = ("clients", "clients_per_round", "local_iterations", "learning_rate")
"""The sizes of a federation that every command with a training has."""

limit_options = with_options([request_option("evaluations"), request_option("budget", metavar="SECONDS")])

federation_options = with_options([request_options("defense", *FederationFields.__annotations__), data_dir_option])

attack_options = with_options(
    [
        request_options("size", "attack", "knows", "protocol", "leak_model", "taps", "victims", "iterations"),
        limit_options,
        request_option("leak_batch", type=click.IntRange(min=1)),
        request_options("leak_rounds", "join_rounds"),
        click.option(
            "--no-pictures",
            "pictures",
            is_flag=True,
            flag_value=False,
            default=True,
            help="Keep scores only: no file contains an example or a reconstruction.",
        ),
        request_options("reads", "statistics", "observations", "networks", "success", "candidates"),
        request_option("device", default="auto"),
        request_options("canaries", "engine", "lpips_weights"),
    ]
)
