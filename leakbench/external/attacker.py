"""A truth that lies among the public examples: no attacker of private data has these, so that they are left out."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from leakbench.attack import Attack
from leakbench.attack.evaluations import with_evaluations
from leakbench.attack.methods.autoleak import AutoLeak
from leakbench.attack.slots.labels import Joint, LastLayer, LastLayerCounts
from leakbench.attack.slots.stop import MOST_ITERATIONS, limited
from leakbench.cell import KNOWS
from leakbench.data.dataset import Dataset
from leakbench.data.find import load_dataset
from leakbench.data.recipe import DatasetRecipe, Federation
from leakbench.defense import Defense, Probe
from leakbench.defense.facts import facts_at
from leakbench.errors import InputError, nearest
from leakbench.experiment.leak_noise import noise_std
from leakbench.external.network import in_mode, ran
from leakbench.external.trace import Seen
from leakbench.federated.view import Public, View
from leakbench.measure.metrics import success_threshold
from leakbench.recipe import resolve
from leakbench.rng import generator
from leakbench.summary.verdict import STRONGEST

__all__ = ["Attacker", "Who", "aware", "suited", "told", "with_limit", "without_truth"]


SAME = 1e-4
"""How far apart two inputs in [0, 1] may be, by rounding as of a normalisation that was undone, and be the same example."""


def without_truth(public: Public, inputs: Tensor | None) -> tuple[Public, int]:
    """Return the public examples that are none of the inputs (V, M, *s), and how many were left out.

    Raises InputError where none is left.
    """
    if inputs is None:
        return public, 0
    held, truth = public.inputs.flatten(1), inputs.flatten(0, 1).flatten(1)
    means, kept = held.mean(1), torch.ones(len(held), dtype=torch.bool)
    for one in truth.to(held):
        # Examples are no farther apart in the mean than anywhere.
        near = ((means - one.mean()).abs() <= 2 * SAME).nonzero()[:, 0]
        kept[near[(held[near] - one).abs().amax(1) <= SAME]] = False
    if not bool(kept.any()):
        raise InputError(f"dataset: all of its {len(kept)} public examples are the truth's own; expected another one")
    left_out = len(kept) - int(kept.sum())
    return (Public(public.inputs[kept], public.labels[kept]) if left_out else public), left_out


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


@dataclass(frozen=True)
class Who:
    """An attacker by names.

    Args:
        attack: Names of the catalog or paths of recipes; the defense is what the attacker is told was done to updates, None: of
            none; the dataset is whose public examples it has, None: made-up ones.
        defense: Names of the catalog or paths of recipes; the defense is what the attacker is told was done to updates, None: of
            none; the dataset is whose public examples it has, None: made-up ones.
        dataset: Names of the catalog or paths of recipes; the defense is what the attacker is told was done to updates, None: of
            none; the dataset is whose public examples it has, None: made-up ones.
        data_dir: Where data sets lie.
        success: The RMSE up to which an answer counts; None: the data set's.
        seed: Of all that it draws.
        knows: `oblivious` or `defense`; None: what the attack's recipe says.
        iterations: The most that a search may take; None: the recipe's.
        evaluations: The most gradient evaluations of each victim, and the most seconds of all; None: no limit.
        budget: The most gradient evaluations of each victim, and the most seconds of all; None: no limit.
    """

    attack: str = "autoleak"
    defense: str | None = None
    dataset: str | None = None
    data_dir: Path | None = None
    success: float | None = None
    seed: int = 0
    knows: str | None = None
    iterations: int | None = None
    evaluations: int | None = None
    budget: float | None = None

    @staticmethod
    def taken(given: dict[str, Any]) -> Who:
        """Return the attacker of a command's options, which are taken out of them."""
        return Who(**{field.name: given.pop(field.name) for field in dataclasses.fields(Who) if field.name in given})

    @property
    def names(self) -> dict[str, str]:
        """What a page of the answers calls who attacks what."""
        told = {"dataset": self.dataset or "own data", "defense": self.defense or "none told"}
        return {**told, "attack": self.attack}

    def __call__(self) -> Attacker:
        """Return the attacker without its public data, which `with_public` loads.

        Raises InputError for an unknown name, and for a number outside its range.
        """
        if self.success is not None and not 0 < self.success <= 1:
            raise InputError(f"success: got rmse<={self.success:g}, expected 0 < RMSE <= 1")
        if self.seed < 0:
            raise InputError(f"seed: got {self.seed}, expected at least 0")
        if self.evaluations is not None and self.evaluations < 1:
            raise InputError(f"evaluations: got {self.evaluations}, expected at least 1")
        if self.dataset is not None:
            resolve("datasets", DatasetRecipe, self.dataset)
        return Attacker(
            self._attack(),
            None if self.defense is None else resolve("defenses", Defense, self.defense)[1],
            None,
            self.success,
            self.seed,
            self.evaluations,
            self.budget,
            tuple(self._untried()),
            self._shortened,
        )

    @property
    def _shortened(self) -> str:
        """The options that give `autoleak` less work than it has in the catalog; empty where none does."""
        limits = {"iterations": self.iterations, "evaluations": self.evaluations}
        words = [f"--{name} {value}" for name, value in limits.items() if value is not None]
        return " ".join(words) if self.attack == STRONGEST else ""

    def _untried(self) -> Iterator[str]:
        """Yield what might find more than this attacker does."""
        if self.attack != STRONGEST:
            yield f"{STRONGEST}, the strongest attack"
        elif self.iterations is not None or self.evaluations is not None:
            yield f"{STRONGEST} without a limit"
        if self.defense is not None and self.knows == "oblivious":
            yield "an attacker that knows the defense"
        if self.dataset is None:
            yield "an attacker with real public examples (--dataset)"
        yield "several updates of the same examples"
        yield "a malicious server"

    def with_public(self, attacker: Attacker) -> Attacker:
        """Return the attacker with the data set that its public examples come from; raises InputError where it is missing."""
        if self.dataset is None:
            return attacker
        return dataclasses.replace(attacker, data=load_dataset(self.dataset, self.data_dir)[2])

    def _attack(self) -> Attack:
        recipe = resolve("attacks", Attack, self.attack)[1]
        if self.knows is not None:
            if self.knows not in KNOWS:
                raise InputError(
                    f"knows: got {self.knows!r}, expected {' or '.join(KNOWS)}{nearest(self.knows, KNOWS)}"
                )
            recipe = dataclasses.replace(recipe, knows=self.knows)  # type: ignore[arg-type]
        if self.iterations is None:
            return recipe
        if not 1 <= self.iterations <= MOST_ITERATIONS:
            raise InputError(f"iterations: got {self.iterations}, expected 1 to {MOST_ITERATIONS}")
        method = limited(recipe.method, self.iterations)
        if method is None:
            raise InputError(f"iterations: the attack's method {type(recipe.method).__name__} takes no iterations")
        return dataclasses.replace(recipe, method=method)


SEARCHED = "no trained layer ends the network with a row for each class: autoleak searches labels with the inputs"
COUNTED = "features of the last layer can be negative: autoleak counts labels by public examples, not by their signs"


def suited(attacker: Attacker, seen: Seen) -> tuple[Attacker, str]:
    """Return the attacker that reads labels as this network lets it, and a sentence where that is not as its recipe does.

    Of other attacks than `autoleak`, which are published ones, nothing is changed.
    """
    view, method = seen.view, attacker.attack.method
    if not isinstance(method, AutoLeak):
        return attacker, ""
    matrices = [p for p in view.update.values() if p.dim() > 2]
    x = torch.rand(4, *view.shape, generator=torch.Generator().manual_seed(0))
    found = ran(in_mode(view.network.model, "eval"), x)
    labels: Any
    if not matrices or matrices[-1].shape[1] != view.classes or not found.answers:
        labels, said = Joint(), SEARCHED
    elif found.signed:
        labels, said = LastLayerCounts(), COUNTED
    else:
        return attacker, ""
    changed = dataclasses.replace(attacker.attack, method=_with(method, labels))
    return dataclasses.replace(attacker, attack=changed), said


def _with(part: Any, labels: Any) -> Any:
    """Return a part with other labels in place of those that are read off the last layer, however deep they lie."""
    if isinstance(part, LastLayer | LastLayerCounts):
        return labels
    if isinstance(part, tuple):
        return tuple(_with(inner, labels) for inner in part)
    if not dataclasses.is_dataclass(part) or isinstance(part, type):
        return part
    changed = {f.name: _with(getattr(part, f.name), labels) for f in dataclasses.fields(part) if f.init}
    return dataclasses.replace(part, **changed)
