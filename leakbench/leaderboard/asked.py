"""What a card measures: the sizes of its cells, their requests, the commands that repeat them, and the hash of all."""

from __future__ import annotations

import dataclasses
import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field
from pydantic_core import PydanticCustomError

from leakbench.attack import attack_on
from leakbench.attack.slots.stop import searches_of
from leakbench.cell import Cell, Request
from leakbench.cell.budget import plan, prepare
from leakbench.core.errors import InputError
from leakbench.core.part import Count, Positive, part
from leakbench.core.recipe import describe
from leakbench.core.request import TRAINING_ONLY, options_of, run_words
from leakbench.data.find import without_examples
from leakbench.storage.store import content_hash
from leakbench.study.stale import recorded_in

__all__ = [
    "ATTACKER_NAMES",
    "EVALUATIONS",
    "Asking",
    "CardSizes",
    "asking",
    "audit_command",
    "audit_request",
    "card_command",
    "hash_of",
    "request_of",
    "settings_of",
    "trainings",
    "usual",
]

ATTACKERS: dict[str, Literal["oblivious", "defense"]] = {"oblivious": "oblivious", "aware": "defense"}
"""{how a card calls the attacker: what it is told}."""

ATTACKER_NAMES = {"oblivious": "oblivious", "aware": "adaptive"}
"""{attacker on a card: its name in texts}."""

FEDERATION = (
    *("train_rounds", "clients", "clients_per_round", "local_iterations", "learning_rate", "batch", "model", "seed"),
)
"""Fields that a training has, and so an audit of it."""

EVALUATIONS = 2000
"""Gradient evaluations of each victim on a card that names no limit: the same on every machine, unlike seconds."""

OF_CARD = ("protocols", "leak_rounds", "seeds", "trials")
"""Fields that no `Request` takes as they are."""


def _round(word: str) -> str:
    """Refuse a word that is neither a number of rounds nor `last`."""
    if not re.fullmatch(r"\d{1,6}|last", word):
        raise PydanticCustomError("slot", "{text}", {"text": f"got {word!r}, expected a number or last"})
    return word


@part
class CardSizes:
    """The sizes of a card's cells; None where the recipes decide.

    Args:
        protocols: That are measured.
        leak_rounds: Rounds trained before the leak in the live protocol.
        iterations: The most of each search; cards from before there was a limit on evaluations have it.
        evaluations: The most gradient evaluations of each victim, see `leakbench.attack.evaluations`.
        seeds: Number of trainings whose accuracy is measured, with `seed` and the seeds after it; the attacks read the first.
        trials: Number of trials of the audit.
    """

    victims: Count = 10
    taps: tuple[Literal["type-2", "type-1", "type-0"], ...] = ("type-2", "type-1", "type-0")
    protocols: tuple[Literal["paper", "live"], ...] = ("paper", "live")
    leak_rounds: tuple[Annotated[str, AfterValidator(_round)], ...] = ("last",)
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
    seeds: Count = 1
    trials: Count | None = None


def request_of(asked: CardSizes, defense: str, dataset: str, attack: str, attacker: str, protocol: str) -> Request:
    """Return what a card asks of one of its cells; always of the CPU, whose numbers are published."""
    given: dict[str, Any] = {f.name: getattr(asked, f.name) for f in dataclasses.fields(asked) if f.name not in OF_CARD}
    if protocol == "live":
        given["leak_rounds"] = asked.leak_rounds
    given |= {"defense": defense, "dataset": dataset, "attack": attack, "knows": ATTACKERS[attacker]}
    return Request(**given, protocol=protocol)


def usual(attack: str, dataset: str, data_dir: Path | None) -> dict[str, int]:
    """Return the sizes of a card that depend on its attack and its data set, where none are given.

    Returns:
        `candidates`, as many as in a run on the data set, at most those of other cards; and `evaluations` for an attack that
        searches, to which a limit applies.
    """
    _, recipe, data = without_examples(dataset, data_dir)
    searches = any(hasattr(search, "stop") for search in searches_of(attack_on(data.kind, attack)[1].method))
    return {"candidates": min(CardSizes().candidates, recipe.candidates)} | (
        {"evaluations": EVALUATIONS} if searches else {}
    )


def audit_request(asked: CardSizes, defense: str, dataset: str) -> dict[str, Any]:
    """Return what a card asks of its audit and of each training: the fields of a `Request` that decide the training."""
    given = {name: getattr(asked, name) for name in FEDERATION if getattr(asked, name) is not None}
    return {"defense": defense, "dataset": dataset, **given}


def _command_of(request: Request) -> str:
    """Return the command line that runs a request's cell."""
    return shlex.join([*run_words(request, ("device",)), "--device", "cpu"])


def audit_command(asked: CardSizes, defense: str, dataset: str) -> str:
    """Return the command line of a card's audit."""
    trials = [] if asked.trials is None else ["--trials", str(asked.trials)]
    return shlex.join(
        ["leakbench", "audit", *options_of(Request(**audit_request(asked, defense, dataset)), Request()), *trials]
    )


def card_command(asked: CardSizes, defense: str, dataset: str, attack: str) -> str:
    """Return the command line that writes the card."""
    other = ["--attack", attack] if attack != Request().attack else []
    return shlex.join(["leakbench", "card", defense, dataset, *other, *options_of(asked, CardSizes())])


OF_CELLS = ("part", "protocol", "leak_rounds", "leak_model", "partition")
"""Settings in which the cells of one card differ, and settings that are not a single value."""


@dataclasses.dataclass(frozen=True)
class Asking:
    """One cell of a card before it is run: its attacker, its protocol, the command that runs it, and the cell.

    Args:
        attacker: Empty where the cell is run only for the accuracy of its training.
        command: On the card, which names the recipes as the catalog does or will.
    """

    attacker: str
    protocol: str
    command: str
    cell: Cell

    @property
    def name(self) -> str:
        """Its attacker and protocol, in words, or its seed where it is run for its training."""
        if not self.attacker:
            return f"training with seed {self.cell.settings.seed}"
        return f"{ATTACKER_NAMES[self.attacker]} attacker, protocol {self.protocol}"

    @property
    def given(self) -> str:
        """The command that runs the cell now: with the recipes' paths where paths were given."""
        return self.command if self.cell.request is None else _command_of(self.cell.request)


def asking(asked: CardSizes, defense: str, dataset: str, attack: str, data_dir: Path | None) -> list[Asking]:
    """Return the cells of a card, those of the oblivious attacker first; raises InputError for what cannot be run.

    Args:
        defense: a name of the catalog, or the path of a recipe; commands then have the name that it will have there.
    """
    if not asked.protocols or not asked.taps:
        raise InputError(f"{'taps' if asked.protocols else 'protocols'}: got none, expected one or more")
    found, both = [], [(attacker, protocol) for attacker in ATTACKERS for protocol in dict.fromkeys(asked.protocols)]
    for attacker, protocol in both:  # Every cell is checked before any data are looked for.
        plan(request_of(asked, defense, dataset, attack, attacker, protocol), data_dir)
    for attacker, protocol in both:
        cell = prepare(request_of(asked, defense, dataset, attack, attacker, protocol), data_dir)
        named = request_of(asked, cell.names["defense"], dataset, attack, attacker, protocol)
        found.append(Asking(attacker, protocol, _command_of(named), cell))
    return found


def trainings(asked: CardSizes, first: Cell, defense: str, data_dir: Path | None) -> list[Asking]:
    """Return the cells of the trainings with the seeds after the first one, whose training is that of every cell of the card.

    Args:
        asked: The sizes of the card.
        first: A cell of the card.
        defense: A name of the catalog, or the path of a recipe.
        data_dir: Folder of the data sets; None for the default.

    Raises:
        InputError: Several seeds are asked for, and nothing is trained.
    """
    if asked.seeds > 1 and not first.settings.federation.rounds:
        raise InputError(f"seeds: got {asked.seeds} without training, expected 1; set --train-rounds")
    found = []
    for seed in range(asked.seed + 1, asked.seed + asked.seeds):
        fields = {**audit_request(asked, defense, first.names["dataset"]), **TRAINING_ONLY, "seed": seed}
        named = Request(**{**fields, "defense": first.names["defense"]})
        found.append(Asking("", named.protocol, _command_of(named), prepare(Request(**fields), data_dir)))
    return found


def settings_of(cells: Sequence[Asking]) -> dict[str, Any]:
    """Return the numbers and words that are the same for all cells of a card, and the behaviour versions above 1 of any.

    Those of the federation are among them; the versions are JSON.
    """
    flat = describe(cells[-1].cell.settings)
    both = {**flat.pop("federation"), **flat}
    same = {name: ",".join(value) if name == "taps" else value for name, value in both.items() if name not in OF_CELLS}
    return same | recorded_in(each.cell for each in cells)


def hash_of(cells: Sequence[Asking], asked: CardSizes) -> str:
    """Return the hash of what a card asks: of its cells' hashes, of its audit's command, and of several seeds."""
    of, seeds = cells[0].cell.names, [f"{asked.seeds} seeds"] if asked.seeds > 1 else []
    return content_hash(
        [*(each.cell.hash for each in cells), audit_command(asked, of["defense"], of["dataset"]), *seeds]
    )
