"""Options that several commands share, and how their words are read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from leakbench.errors import InputError
from leakbench.words import seconds, success, words

__all__ = [
    "FOLDER",
    "NEW_FOLDER",
    "attack_options",
    "federation_options",
    "help_alone",
    "limit_options",
    "normalise_by",
    "seconds",
    "success",
    "words",
]

FOLDER = click.Path(exists=True, file_okay=False, path_type=Path)
NEW_FOLDER = click.Path(file_okay=False, path_type=Path)
"""A folder that the command makes if it is missing."""

NAME = "name in the catalog, or a .yaml of your own"
OF_DATASET = "[default: the dataset's]"
PROTOCOL = "paper: the leak is from a sigmoid LeNet at random weights, L = 1; live: from the model that is trained"


def help_alone(context: click.Context) -> None:
    """Print a group's help where none of its commands was named."""
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


def normalise_by(mean: str | None, std: str | None) -> tuple[list[float], list[float]] | None:
    """Return the numbers of `--mean` and `--std`; None without any.

    Raises InputError for one alone, and for words that are no numbers.
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


def _with(options: list[Callable[..., Any]]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed(options):
            function = option(function)
        return function

    return decorate


EVALUATIONS = (
    "most gradient evaluations of each victim, shared by the searches of the attack; the same numbers on every machine; closed"
    " forms, the separation of batches and rankings do not count [default: no limit]"
)

BUDGET = (
    "most wall time of all attacks of the command, as 60, 60s or 2m, shared out over leakage points and victims; a search that it"
    " stops answers with its best so far and a warning says so, so that numbers depend on the machine; every search takes at least"
    " one iteration; rankings run before the searches and count, but neither they nor closed forms are stopped [default: no limit]"
)

limit_options = _with(
    [
        click.option("--evaluations", type=int, help=EVALUATIONS),
        click.option("--budget", metavar="SECONDS", help=BUDGET),
    ]
)

federation_options = _with(
    [
        click.option("--defense", default="none", show_default=True, help=NAME),
        click.option("--dataset", default="faces", show_default=True, help=NAME),
        click.option("--model", help="the network that is trained [default: cnn; mlp for tables and small pictures]"),
        click.option("--victim-mode", help="train or eval: how clients run batch normalisation, which needs it said"),
        click.option(
            "--init",
            default="default",
            show_default=True,
            help="first weights: each network's own, torch, kaiming, xavier, uniform:<a>",
        ),
        click.option("--train-rounds", type=int, help=f"rounds of training, 0 trains nothing {OF_DATASET}"),
        click.option("--clients", type=int, help=f"how many there are, N {OF_DATASET}"),
        click.option("--clients-per-round", type=int, help=f"how many take part in a round, K_t {OF_DATASET}"),
        click.option("--local-iterations", type=int, help=f"steps of a client in a round, L {OF_DATASET}"),
        click.option("--learning-rate", type=float, help=f"of the clients' steps {OF_DATASET}"),
        click.option("--client-optimizer", help=f"how clients step: sgd, or adam with torch's defaults {OF_DATASET}"),
        click.option("--batch", type=int, help=f"examples in a step, B {OF_DATASET}"),
        click.option("--dropout", type=float, help=f"probability that a sampled client fails {OF_DATASET}"),
        click.option(
            "--noise-factor",
            type=float,
            help="multiply all noise of the defense, which is sigma C, by this, 1e-6 to 1e6",
        ),
        click.option(
            "--clip-factor", type=float, help="multiply its clip norms C by this, 1e-6 to 1e6; noise of sigma C follows"
        ),
        click.option("--epsilon", type=float, help="choose the noise that spends this valid epsilon (at delta 1e-5)"),
        click.option("--stop-at-epsilon", type=float, help="train only the rounds whose valid epsilon is at most this"),
        click.option("--stop-at-delta", type=float, help="the delta of --stop-at-epsilon [default: 1e-5]"),
        click.option("--seed", type=int, default=0, show_default=True),
        click.option(
            "--data-dir", type=FOLDER, help="where data sets lie [default: $LEAKBENCH_DATA, the user's cache]"
        ),
    ]
)

attack_options = _with(
    [
        click.option("--attack", default="autoleak", show_default=True, help=NAME),
        click.option(
            "--knows", help="what the attacker is told: oblivious, or defense (its recipe) [default: the attack's]"
        ),
        click.option("--protocol", default="paper", show_default=True, help=PROTOCOL),
        click.option(
            "--leak-model", help="paper protocol: the network that leaks [default: lenet_cpl, or mlp_sigmoid]"
        ),
        click.option("--taps", default="type-2,type-1,type-0", show_default=True, help="leakage points; also: global"),
        click.option("--victims", type=int, default=10, show_default=True, help="victims at each leakage point"),
        click.option("--iterations", type=int, help="iterations of an attack that searches [default: the recipe's]"),
        limit_options,
        click.option(
            "--leak-batch",
            type=click.IntRange(min=1),
            help="examples in one leaked batch at types 1 and 0 [default: B]",
        ),
        click.option("--leak-rounds", default="0", show_default=True, help="live: rounds before the leak, as 0,1,last"),
        click.option(
            "--join-rounds", is_flag=True, help="live: hand all leak rounds of the same examples to one attack"
        ),
        click.option(
            "--no-pictures",
            "pictures",
            is_flag=True,
            flag_value=False,
            default=True,
            help="keep scores only: no example, no reconstruction, in no file",
        ),
        click.option(
            "--reads", default="gradient", show_default=True, help="updates as: gradient, weights (in float32)"
        ),
        click.option(
            "--observations", type=int, default=1, show_default=True, help="looks at each gradient, each with new noise"
        ),
        click.option(
            "--networks",
            type=int,
            help="Draws of the first weights that the victims are spread over, paper protocol [default: 5]",
        ),
        click.option("--success", help="what counts as a reconstruction, like 'rmse<=0.1' [default: calibrated]"),
        click.option("--candidates", type=int, default=1000, show_default=True, help="k of identification among k"),
        click.option(
            "--device",
            default="auto",
            show_default=True,
            help="cpu, cuda, cuda:1, ...; auto: cuda where there is a GPU",
        ),
        click.option(
            "--engine",
            default="fast",
            show_default=True,
            help="gradients by: fast (products of matrices, where layers are a chain; noise of a batch drawn once), reference"
            " (torch.func); training under noise draws other numbers of the same distribution",
        ),
        click.option("--lpips-weights", type=FOLDER, help="folder with torchvision's squeezenet or alexnet weights"),
    ]
)
