"""What a card asks for: the sizes of its cells, from which its requests and the commands that repeat them follow."""

from __future__ import annotations

import dataclasses
import shlex
from typing import Annotated, Any, Literal

from pydantic import Field

from leakbench.attack import Attack
from leakbench.attack.slots.stop import searches_of
from leakbench.cell import Request
from leakbench.cell.command import options_of, run_words
from leakbench.part import Count, Positive, part
from leakbench.recipe import resolve

__all__ = [
    "ATTACKERS",
    "EVALUATIONS",
    "Asked",
    "audit_command",
    "audit_request",
    "card_command",
    "command_of",
    "request_of",
    "searches",
]

ATTACKERS: dict[str, Literal["oblivious", "defense"]] = {"oblivious": "oblivious", "aware": "defense"}
"""{how a card calls the attacker: what it is told}."""

FEDERATION = (
    *("train_rounds", "clients", "clients_per_round", "local_iterations", "learning_rate", "batch", "model", "seed"),
)
"""Fields that a training has, and so an audit of it."""

EVALUATIONS = 2000
"""Gradient evaluations of each victim on a card that names no limit: the same on every machine, unlike seconds."""

OF_CARD = ("protocols", "leak_rounds", "trials")
"""Fields that no `Request` takes as they are."""


@part
class Asked:
    """The sizes of a card's cells; None where the recipes decide.

    iterations: the most of each search; cards from before there was a limit on evaluations have it.
    evaluations: the most gradient evaluations of each victim, see `leakbench.attack.evaluations`.
    protocols: that are measured.  leak_rounds: of the live protocol, rounds trained before the leak.
    trials: of the audit.
    """

    victims: Count = 10
    taps: tuple[Literal["type-2", "type-1", "type-0"], ...] = ("type-2", "type-1", "type-0")
    protocols: tuple[Literal["paper", "live"], ...] = ("paper", "live")
    leak_rounds: tuple[Annotated[str, Field(pattern=r"^(\d{1,6}|last)$")], ...] = ("last",)
    candidates: Annotated[int, Field(ge=2)] = 1000
    iterations: Count | None = None
    evaluations: Count | None = None
    leak_batch: Count | None = None
    observations: Count = 1
    train_rounds: Annotated[int, Field(ge=0)] | None = None
    clients: Count | None = None
    clients_per_round: Count | None = None
    local_iterations: Count | None = None
    learning_rate: Positive | None = None
    batch: Count | None = None
    model: Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$")] | None = None
    seed: Annotated[int, Field(ge=0)] = 0
    trials: Count | None = None


def request_of(asked: Asked, defense: str, dataset: str, attack: str, attacker: str, protocol: str) -> Request:
    """Return what a card asks of one of its cells; always of the CPU, whose numbers are published."""
    given: dict[str, Any] = {f.name: getattr(asked, f.name) for f in dataclasses.fields(asked) if f.name not in OF_CARD}
    if protocol == "live":
        given["leak_rounds"] = asked.leak_rounds
    given |= {"defense": defense, "dataset": dataset, "attack": attack, "knows": ATTACKERS[attacker]}
    return Request(**given, protocol=protocol)


def searches(attack: str) -> bool:
    """Return whether an attack of the catalog has a search, so that a limit on evaluations applies to it."""
    method = resolve("attacks", Attack, attack)[1].method
    return any(hasattr(search, "stop") for search in searches_of(method))


def audit_request(asked: Asked, defense: str, dataset: str) -> dict[str, Any]:
    """Return what a card asks of its audit: the fields of a `Request` that decide the training."""
    given = {name: getattr(asked, name) for name in FEDERATION if getattr(asked, name) is not None}
    return {"defense": defense, "dataset": dataset, **given}


def command_of(request: Request) -> str:
    """Return the command line that runs a request's cell."""
    return shlex.join([*run_words(request, ("device",)), "--device", "cpu"])


def audit_command(asked: Asked, defense: str, dataset: str) -> str:
    """Return the command line of a card's audit."""
    trials = [] if asked.trials is None else ["--trials", str(asked.trials)]
    return shlex.join(
        ["leakbench", "audit", *options_of(Request(**audit_request(asked, defense, dataset)), Request()), *trials]
    )


def card_command(asked: Asked, defense: str, dataset: str, attack: str) -> str:
    """Return the command line that writes the card."""
    other = ["--attack", attack] if attack != Request().attack else []
    return shlex.join(["leakbench", "card", defense, dataset, *other, *options_of(asked, Asked())])
