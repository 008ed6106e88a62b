"""One cell of the benchmark: its parts, and its content hash, which is its identity."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from leakbench.attack import Attack
from leakbench.cell.behaviours import behaviours_of
from leakbench.cell.device import conditions
from leakbench.cell.settings import Settings
from leakbench.core.behaviour import raised
from leakbench.core.errors import InputError
from leakbench.core.provenance import versions
from leakbench.core.recipe import acting, describe
from leakbench.core.request import Request
from leakbench.core.rng import generator
from leakbench.core.types import Clock
from leakbench.data.dataset import Dataset
from leakbench.data.partition import Iid, Partition
from leakbench.data.recipe import DatasetRecipe, Federation
from leakbench.defense import Defense
from leakbench.measure.metrics import Score
from leakbench.models.references import identity_of, named
from leakbench.storage.store import SCHEMA, content_hash

__all__ = [
    "LATER_OF_FEDERATION",
    "USUAL",
    "Cell",
    "changed_federation",
    "hand_out",
    "identified",
    "identity",
    "leak_clock",
    "leak_federation",
]


LATER_OF_FEDERATION = (
    "client_optimizer",
    "momentum",
    "weight_decay",
    "algorithm",
    "proximal",
    "epochs",
    "availability",
)
"""Settings of a federation that came later; at their defaults, they are not part of the identity."""

USUAL = {field.name: field.default for field in dataclasses.fields(Federation)}
"""{setting of a federation: its default}."""

SINCE = "0.1.0"
"""Release that is part of every identity. A later release changes identities only by behaviour versions, not by its number."""


def changed_federation(federation: Federation) -> dict[str, Any]:
    """Return {setting: value} of the settings of `LATER_OF_FEDERATION` that are not at their defaults."""
    return {n: value for n in LATER_OF_FEDERATION if (value := getattr(federation, n)) != USUAL[n]}


@dataclass(frozen=True)
class Cell:
    """One cell, ready to run.

    Args:
        request: The user's request; None for a cell from code. It is not part of the identity.
        data_dir: Folder of the data sets that the user named, which is not part of the identity either; None without one.
        drawn: {leakage point: whether its update depends on random numbers}, the cached results of `random_at` for this cell; a
            changed cell starts without them.
    """

    names: dict[str, str]
    attack: Attack
    defense: Defense
    recipe: DatasetRecipe
    data: Dataset
    settings: Settings
    lpips: Score | str
    hash: str
    request: Request | None = None
    data_dir: Path | None = None
    drawn: dict[str, bool] = field(default_factory=dict, init=False, repr=False, compare=False)

    @property
    def name(self) -> str:
        """The name of the run's folder."""
        defense = self.names["defense"].partition(" (")[0]
        return "-".join([self.names["dataset"], defense, self.names["attack"], self.hash[:8]])


def identified(cell: Cell) -> Cell:
    """Return the cell with the hash of its content; a cell without examples has no identity and does not change."""
    if not cell.data.has_examples:
        return cell
    content: dict[str, Any] = {
        "schema": SCHEMA,
        "version": SINCE,
        "names": cell.names,
        "recipes": [acting(describe(cell.attack)), acting(describe(cell.defense))],
        "data": cell.data.content,
        # Where a cell is computed does not change what it is; the manifest's `computed` names its devices.
        "settings": _described(cell.settings) | {"device": "cpu"},
    }
    for name in ("model", "leak_model"):  # The same files in another folder are the same network.
        content["settings"][name] = identity_of(getattr(cell.settings, name))
    if not cell.settings.federation.dropout:
        # Without dropout, its settings change no result, so they are not part of the identity.
        del content["settings"]["federation"]["dropout"], content["recipes"][1]["on_dropout"]
    for name in LATER_OF_FEDERATION:
        if content["settings"]["federation"][name] == USUAL[name]:
            del content["settings"]["federation"][name]
    for setting in dataclasses.fields(cell.settings):  # A setting that came later is left out at its default.
        if content["settings"][setting.name] == setting.default:
            del content["settings"][setting.name]
    if versions := raised(behaviours_of(cell)):
        content["behaviours"] = versions
    return dataclasses.replace(cell, hash=content_hash(content))


def identity(cell: Cell, command: str) -> dict[str, Any]:
    """Return the first content of the manifest of a cell's run."""
    recipes = {"attack": cell.attack, "defense": cell.defense, "dataset": cell.recipe}
    return {
        "hash": cell.hash,
        "cell": {**cell.names, "seed": cell.settings.seed},
        "seed": cell.settings.seed,
        "device": cell.settings.device,
        "command": command,
        "versions": versions(),
        "computed": [conditions(torch.device(cell.settings.device))],
        "recipes": {name: describe(recipe) for name, recipe in recipes.items()},
        "settings": _described(cell.settings),
    }


def _described(settings: Settings) -> dict[str, Any]:
    """Return the settings as plain data. The networks in folders have the folder's own name, without the path to it."""
    described: dict[str, Any] = describe(settings)
    return described | {"model": named(settings.model), "leak_model": named(settings.leak_model)}


def hand_out(cell: Cell) -> Partition:
    """Hand the training examples out to the clients of a cell.

    Raises:
        InputError: If clients would need an example twice, or a partition by groups has none.
    """
    f, rng, data = cell.settings.federation, generator(cell.settings.seed, "partition"), cell.data
    if not getattr(f.partition, "by_groups", False):
        return f.partition(data.train_targets, f.clients, f.examples_per_client, rng)
    if not data.has_examples:
        # Recorded sizes have no groups. Only the counts of copies are used without examples, and each example has at most one.
        return Iid()(data.train_targets, f.clients, f.examples_per_client, rng)
    if data.groups is None:
        raise InputError(
            f"partition: by_group needs a dataset with groups (femnist, celeba, lfw), {data.name!r} has none; use iid"
        )
    return f.partition(data.groups, f.clients, f.examples_per_client, rng)


def leak_federation(cell: Cell) -> Federation:
    """Return the federation at a leak: the leaked batch, and clients with at least as many examples.

    Clients that pass over their examples take as many local iterations as these have batches of the leaked size.
    """
    s, f = cell.settings, cell.settings.federation
    held = max(s.leak_batch, f.examples_per_client)
    steps = f.epochs * (held // s.leak_batch) or f.local_iterations
    return dataclasses.replace(f, batch=s.leak_batch, examples_per_client=held, local_iterations=steps)


def leak_clock(cell: Cell, round_number: int) -> Clock:
    """Return the clock at a leak, with all local iterations in the live protocol and one in the paper protocol."""
    federation = leak_federation(cell)
    steps = federation.local_iterations if cell.settings.protocol == "live" else 1
    clock = cell.defense.clock(federation, round_number)
    return dataclasses.replace(clock, rounds=max(1, federation.rounds), local_iterations=steps)
