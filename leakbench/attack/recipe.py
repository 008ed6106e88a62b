"""The recipe of an attack: its method, its server, and what the attacker knows of the defense."""

from __future__ import annotations

from typing import Annotated, Literal, Protocol, runtime_checkable

from pydantic import Field

from leakbench.attack.needs import TEXT, Needs, needs_of
from leakbench.attack.servers.server import Honest, Server
from leakbench.core.answers import Ranking, Reconstruction
from leakbench.core.part import Text, part
from leakbench.core.recipe import Slot, resolve
from leakbench.core.types import Generators
from leakbench.federated.view import View

__all__ = ["METHOD", "Attack", "Method", "attack_on"]


@runtime_checkable
class Method(Protocol):
    """Turns observed gradients or updates into a reconstruction."""

    def __call__(self, views: tuple[View, ...], rngs: Generators) -> Reconstruction | Ranking:
        """Return the reconstruction or the ranking for the V victims of the views; victim v draws from rngs[v]."""


SERVER = Slot("server", ("leakbench.attack.servers",))
METHOD = Slot("method", ("leakbench.attack.methods", "leakbench.attack.rankings"))


@part("attack")
class Attack:
    """The recipe of an attack."""

    title: Annotated[Text, Field(description="Name of the attack in tables and pages.")]
    cite: Annotated[Text, Field(description="Source of the attack.")]
    method: Annotated[Method, METHOD]
    note: Annotated[str, Field(description="Differences from the source, and other remarks.")] = ""
    knows: Annotated[
        Literal["oblivious", "defense"],
        Field(
            description=(
                "What the attacker knows of the defense: nothing (`oblivious`), or its recipe (`defense`), whose deterministic"
                " part it then applies to its guesses."
            )
        ),
    ] = "oblivious"
    server: Annotated[Server, SERVER] = Honest()
    leak_model: Annotated[
        str,
        Field(
            description=(
                "Network that leaks in the `paper` protocol, if a part of the method needs another network than the default."
            )
        ),
    ] = ""

    @property
    def needs(self) -> Needs:
        """The needs of the method and of the server.

        If the attacker knows the defense, the method's `needs_told` are added.
        """
        adaptive: Needs = getattr(self.method, "needs_told", Needs()) if self.knows == "defense" else Needs()
        return needs_of(self.method) | needs_of(self.server) | adaptive


ENSEMBLE, ENSEMBLE_OF_TEXTS = "autoleak", "autoleak_texts"
"""The recipe of the worst case of several attacks, and the one that takes its place on texts."""


def attack_on(kind: str, name: str) -> tuple[str, Attack]:
    """Return the name and the recipe of an attack on data of a kind: the ensemble has other stages on texts.

    Args:
        kind: `image`, `tabular` or `text`.
        name: Name of the catalog, or path of a recipe.

    Raises:
        InputError: The name is unknown, or the recipe is wrong.
    """
    found, attack = resolve("attacks", Attack, name)
    return found, resolve("attacks", Attack, ENSEMBLE_OF_TEXTS)[1] if kind == TEXT and found == ENSEMBLE else attack
