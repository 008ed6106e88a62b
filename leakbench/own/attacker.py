"""The attacker of external updates: its recipe, what it is told, and the public examples that it has."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import torch
from torch import Tensor

from leakbench.attack import Attack
from leakbench.attack.evaluations import with_evaluations
from leakbench.data.dataset import Dataset
from leakbench.data.recipe import Federation
from leakbench.defense import Defense, Probe
from leakbench.defense.facts import facts_at
from leakbench.errors import InputError
from leakbench.experiment.leak_noise import noise_std
from leakbench.federated.view import Public, View
from leakbench.measure.metrics import success_threshold
from leakbench.own.seen import Seen
from leakbench.rng import generator

__all__ = ["Attacker", "aware", "told", "with_limit"]

MADE_UP = 256
"""How many pictures stand for public ones where no data set is named."""

SUCCESS = 0.1
"""The threshold of success where no data set says what is close, an RMSE of inputs in [0, 1]."""


@dataclass(frozen=True)
class Attacker:
    """Who attacks.

    Args:
        attack: The recipe.
        defense: The recipe that was applied to the updates, as the attacker is told it; None: it is told of none.
        data: Whose public examples it has, by which success is calibrated too; None: made-up pictures.
        success: The threshold, an RMSE; None: the data set's, else `SUCCESS`.
        seed: Of all that it draws.
        evaluations: The most gradient evaluations of each victim, see `with_limit`.
        budget: The most seconds of the attack; None: no limit.
        untried: What might find more than this attacker, for a reader whose update does not leak to it.
        shortened: The option that gives `autoleak` less work than it has in the catalog, with its value; empty for none.
    """

    attack: Attack
    defense: Defense | None = None
    data: Dataset | None = None
    success: float | None = None
    seed: int = 0
    evaluations: int | None = None
    budget: float | None = None
    untried: tuple[str, ...] = ()
    shortened: str = ""

    @property
    def eta(self) -> float:
        """The threshold of success."""
        if self.success is not None or self.data is None:
            return SUCCESS if self.success is None else self.success
        return success_threshold(self.data.train_inputs[self.data.victims], generator(self.seed, "eta"))

    def public(self, shape: tuple[int, ...], classes: int) -> Public:
        """Return the public examples; raises InputError for a data set of another shape or fewer classes."""
        rng = generator(self.seed, "public")
        if self.data is None:
            return Public(_made_up(shape, rng), torch.arange(MADE_UP) % classes)
        if self.data.shape != shape or self.data.classes > classes:
            raise InputError(
                f"dataset: {self.data.name!r} has inputs of {self.data.shape} and {self.data.classes} classes, the app"
                f" {shape} and {classes}"
            )
        chosen = torch.randperm(len(self.data.public_targets), generator=rng)
        return Public(self.data.public_inputs[chosen], self.data.public_targets[chosen])


def with_limit(attacker: Attacker, seen: Seen) -> Attacker:
    """Return the attacker whose searches share `attacker.evaluations` on the network that leaked; raises InputError for too few."""
    if attacker.evaluations is None:
        return attacker
    view = seen.view
    method = with_evaluations(attacker.attack.method, attacker.evaluations, view.network.model, view.shape)
    return dataclasses.replace(attacker, attack=dataclasses.replace(attacker.attack, method=method))


def told(seen: Seen, attacker: Attacker) -> View:
    """Return the view of an attacker who knows what the clients do to their updates, if its recipe has it know."""
    return seen.view if attacker.attack.knows == "oblivious" else aware(seen, attacker.defense)


def aware(seen: Seen, defense: Defense | None) -> View:
    """Return the view of an attacker who knows the defense's recipe, where there is one."""
    view = seen.view
    if defense is None:
        return view
    how = seen.training
    federation = Federation(
        rounds=view.clock.round + 1,
        batch=how.batch,
        examples_per_client=how.batch,
        clients=1,
        clients_per_round=1,
        local_iterations=how.steps,
        learning_rate=how.learning_rate,
    )
    done = facts_at(defense, Probe(view.network, view.shape, view.classes, federation), view.clock)
    std = noise_std(done, view.tap, how.batch, 1, how.steps, how.learning_rate, how.optimizer)
    drawn = any("noise" in fact.kind for station in done.values() for fact in station)
    noise, unknown = (None, std if drawn else "") if isinstance(std, str) else (std, "")
    known = dataclasses.replace(view.knowledge, defense=True)
    return dataclasses.replace(view, stations=defense.stations, noise=noise, unknown=unknown, knowledge=known)


def _made_up(shape: tuple[int, ...], rng: torch.Generator) -> Tensor:
    """Return pictures (n, C, H, W) with the 1 / f amplitudes of natural ones, or uniform records (n, F), in [0, 1]."""
    noise = torch.randn(MADE_UP, *shape, generator=rng)
    if len(shape) != 3:
        return torch.rand(MADE_UP, *shape, generator=rng)
    rows, columns = torch.meshgrid(torch.fft.fftfreq(shape[1]), torch.fft.rfftfreq(shape[2]), indexing="ij")
    away = (rows**2 + columns**2).sqrt().clamp_min(1 / max(shape[1:]))
    smooth = torch.fft.irfft2(torch.fft.rfft2(noise) / away, s=shape[1:])
    spread = smooth.flatten(1).std(1).reshape(-1, 1, 1, 1)
    pictures: Tensor = (0.5 + 0.25 * smooth / spread).clamp(0, 1)
    return pictures
