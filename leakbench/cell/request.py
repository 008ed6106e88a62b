"""What a user asks of a cell, in the user's words; None where the recipes decide."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypedDict

from leakbench.cell.victim_mode import check_mode_word
from leakbench.errors import InputError, nearest
from leakbench.federated.leakage import TAPS
from leakbench.federated.optimizer import OPTIMIZERS

__all__ = [
    "ENGINES",
    "KNOWS",
    "NETWORKS",
    "PROTOCOLS",
    "READS",
    "FederationFields",
    "Fields",
    "Request",
    "at_least",
    "at_most",
    "check_words",
    "leak_rounds",
    "networks_of",
]

PROTOCOLS = ("paper", "live")

KNOWS = ("oblivious", "defense")
"""What an attacker is told of the defense: nothing, or its recipe."""

ENGINES = ("fast", "reference")
"""How gradients are computed: `leakbench.engine` where a network is a chain of layers, or `torch.func` for all."""

NETWORKS = 5
"""Over how many draws of the first weights the victims of the `paper` protocol are spread by default."""

READS = ("gradient", "weights")
"""What an update is read as: a gradient to the last bit, or the float32 difference of the weights before and after."""


@dataclass(frozen=True)
class Request:
    """What a user asked for; None where the recipes decide.

    Args:
        knows: One of `KNOWS`, what the attacker is told of the defense in the stead of what the attack's recipe says.
        evaluations: The most gradient evaluations of each victim by all searches of the attack together, see
            `leakbench.attack.evaluations`.
        budget: The most seconds of all attacks, see `leakbench.experiment.attack_time`.
        leak_rounds: Round numbers, counted as rounds trained before the leak, and `last`.
        join_rounds: Whether one attack sees the same examples at all of them.
        pictures: Whether examples and reconstructions are kept; else scores alone are.
        reads: `gradient`, or `weights`, whose float32 difference is rounded.
        observations: Looks at each gradient, each with noise of its own.
        networks: Draws of the first weights that the victims are spread over; None: `NETWORKS` in the `paper` protocol, as far as
            there are victims, and the one that is trained in the `live` protocol.
        noise_factor: See `leakbench.cell.factors`.
        clip_factor: See `leakbench.cell.factors`.
        epsilon: See `leakbench.cell.budget`.
        stop_at_epsilon: See `leakbench.cell.budget`.
        stop_at_delta: See `leakbench.cell.budget`.
        device: `cpu`, `cuda`, `cuda:1`, ...; or `auto`, a GPU where there is one, which the command line asks for and scripts,
            whose published numbers are of CPUs, do not.
        engine: One of `ENGINES`.
    """

    defense: str = "none"
    attack: str = "autoleak"
    knows: Literal["oblivious", "defense"] | None = None
    dataset: str = "faces"
    model: str | None = None
    leak_model: str | None = None
    victim_mode: str | None = None
    init: str = "default"
    protocol: str = "paper"
    taps: tuple[str, ...] = ("type-2", "type-1", "type-0")
    victims: int = 10
    iterations: int | None = None
    evaluations: int | None = None
    budget: float | None = None
    train_rounds: int | None = None
    clients: int | None = None
    clients_per_round: int | None = None
    local_iterations: int | None = None
    learning_rate: float | None = None
    client_optimizer: Literal["sgd", "adam"] | None = None
    batch: int | None = None
    dropout: float | None = None
    leak_batch: int | None = None
    leak_rounds: tuple[str, ...] = ("0",)
    join_rounds: bool = False
    pictures: bool = True
    reads: str = "gradient"
    observations: int = 1
    networks: int | None = None
    success: float | None = None
    candidates: int = 1000
    lpips_weights: Path | None = None
    noise_factor: float | None = None
    clip_factor: float | None = None
    epsilon: float | None = None
    stop_at_epsilon: float | None = None
    stop_at_delta: float | None = None
    seed: int = 0
    device: str = "cpu"
    engine: str = "fast"


class FederationFields(TypedDict, total=False):
    """The fields of a `Request` that describe the federation and its training, all but `defense`, each with its type.

    `leakbench.epsilon` and `leakbench.audit` take them as keyword arguments.
    """

    dataset: str
    model: str | None
    victim_mode: str | None
    init: str
    train_rounds: int | None
    clients: int | None
    clients_per_round: int | None
    local_iterations: int | None
    learning_rate: float | None
    client_optimizer: Literal["sgd", "adam"] | None
    batch: int | None
    dropout: float | None
    noise_factor: float | None
    clip_factor: float | None
    epsilon: float | None
    stop_at_epsilon: float | None
    stop_at_delta: float | None
    seed: int


class Fields(FederationFields, total=False):
    """All fields of a `Request`, each with its type, as `leakbench.run` takes them as keyword arguments."""

    defense: str
    attack: str
    knows: Literal["oblivious", "defense"] | None
    leak_model: str | None
    protocol: str
    taps: tuple[str, ...]
    victims: int
    iterations: int | None
    evaluations: int | None
    budget: float | None
    leak_batch: int | None
    leak_rounds: tuple[str, ...]
    join_rounds: bool
    pictures: bool
    reads: str
    observations: int
    networks: int | None
    success: float | None
    candidates: int
    lpips_weights: Path | None
    device: str
    engine: str


def check_words(request: Request) -> None:
    """Raise InputError for a word that is none of those that a field knows."""
    check_mode_word(request.victim_mode)
    if request.protocol not in PROTOCOLS:
        raise InputError(f"protocol: got {request.protocol!r}{nearest(request.protocol, PROTOCOLS)}")
    if request.reads not in READS:
        raise InputError(f"reads: got {request.reads!r}{nearest(request.reads, READS)}")
    if request.engine not in ENGINES:
        raise InputError(f"engine: got {request.engine!r}{nearest(request.engine, ENGINES)}")
    if request.client_optimizer is not None and request.client_optimizer not in OPTIMIZERS:
        raise InputError(
            f"client-optimizer: got {request.client_optimizer!r}{nearest(request.client_optimizer, list(OPTIMIZERS))}"
        )
    if request.knows is not None and request.knows not in KNOWS:
        raise InputError(f"knows: got {request.knows!r}{nearest(request.knows, KNOWS)}")
    if request.leak_model is not None and request.protocol == "live":
        raise InputError(
            f"leak-model: got {request.leak_model!r}, but the live protocol leaks from the network that is trained; give --model"
        )
    if request.join_rounds and request.protocol != "live":
        raise InputError("join-rounds: one attack on several rounds takes --protocol live")
    for tap in request.taps:
        if tap not in TAPS:
            raise InputError(f"taps: got {tap!r}{nearest(tap, TAPS)}")
    if not request.taps:
        raise InputError(f"taps: got none, expected some of {', '.join(TAPS)}")
    if request.reads == "weights" and set(request.taps) == {"type-2"}:
        raise InputError("reads: a type-2 leak is not an update, so weights cannot show it; add --taps type-1")
    if request.success is not None and not 0 < request.success <= 1:
        raise InputError(
            f"success: got a threshold of {request.success}, expected 0 < RMSE <= 1, as in --success 'rmse<=0.1'"
        )


def leak_rounds(request: Request, rounds: int) -> tuple[int, ...]:
    """Return the rounds before which a request wants leaks, of so many that are trained; raises InputError for others."""
    if request.protocol == "paper" and not set(request.leak_rounds) <= {"0", "last" if not rounds else "0"}:
        raise InputError(
            f"leak-rounds: got {','.join(request.leak_rounds)!r}, but the paper protocol leaks before the first round (0); add"
            " --protocol live for later rounds, numbers or last"
        )
    found = set()
    for word in request.leak_rounds:
        if word != "last" and not word.isdecimal():
            raise InputError(f"leak-rounds: got {word!r}, expected round numbers from 0 to {rounds}, or last")
        number = rounds if word == "last" else int(word)
        if number > rounds:
            raise InputError(f"leak-rounds: got {number}, but only {rounds} rounds are trained (--train-rounds)")
        found.add(number)
    return tuple(sorted(found))


def networks_of(request: Request) -> int:
    """Return the number of draws of the first weights that the victims of a request are spread over.

    Args:
        request: The request, with `networks` None for the default: `NETWORKS`, and never more than there are victims.

    Returns:
        At least 1; 1 in the live protocol.

    Raises:
        InputError: For several networks in the live protocol, and for more networks than victims.
    """
    if request.protocol == "live":
        if request.networks not in (None, 1):
            raise InputError(
                f"networks: got {request.networks}, but the live protocol leaks from the one network that is trained; leave"
                " --networks out, and train again with another --seed for another network"
            )
        return 1
    if request.networks is None:
        return min(NETWORKS, request.victims)
    if request.networks > request.victims:
        raise InputError(
            f"networks: got {request.networks}, expected at most the number of victims ({request.victims}); raise --victims"
        )
    return request.networks


def at_most(name: str, value: int, most: int) -> int:
    """Return the value; raises InputError for one above the most."""
    if value > most:
        raise InputError(f"{name}: got {value}, expected at most {most}")
    return value


def at_least(name: str, value: int, least: int) -> int:
    """Return the value; raises InputError for one below the least."""
    if value < least:
        raise InputError(f"{name}: got {value}, expected at least {least}")
    return value
