"""Who attacks, in the words of a command line: an attack, what it is told, whose public examples it has."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from leakbench.attack import Attack
from leakbench.attack.slots.stop import MOST_ITERATIONS, limited
from leakbench.cell import KNOWS
from leakbench.data.find import load_dataset
from leakbench.data.recipe import DatasetRecipe
from leakbench.defense import Defense
from leakbench.errors import InputError, nearest
from leakbench.own.attacker import Attacker
from leakbench.recipe import resolve
from leakbench.summary.verdict import STRONGEST

__all__ = ["Who"]


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
