"""An attack: a method, and what the server does to the model."""

from __future__ import annotations

from typing import Annotated, Literal, Protocol, runtime_checkable

from leakbench.answers import Ranking, Reconstruction
from leakbench.attack.needs import Needs, needs_of
from leakbench.attack.servers.server import Honest, Server
from leakbench.federated.view import View
from leakbench.part import Text, part
from leakbench.recipe import Slot
from leakbench.types import Generators

__all__ = ["METHOD", "Attack", "Method"]


@runtime_checkable
class Method(Protocol):
    """Turns observed gradients or updates into a reconstruction."""

    def __call__(self, views: tuple[View, ...], rngs: Generators) -> Reconstruction | Ranking:
        """Answer for the V victims that all views show; victim v draws from rngs[v]."""


SERVER = Slot("server", ("leakbench.attack.servers",))
METHOD = Slot("method", ("leakbench.attack.methods", "leakbench.attack.rankings"))


@part("attack")
class Attack:
    """The recipe of an attack.

    Args:
        knows: What the attacker knows of the defense: nothing (`oblivious`), or its recipe (`defense`), whose deterministic part
            it then runs on its guesses.
        leak_model: The network that leaks in the `paper` protocol, where a part of the method needs another than the usual one.
    """

    title: Text
    cite: Text
    method: Annotated[Method, METHOD]
    note: str = ""
    knows: Literal["oblivious", "defense"] = "oblivious"
    server: Annotated[Server, SERVER] = Honest()
    leak_model: str = ""

    @property
    def needs(self) -> Needs:
        """What its method and its server have to be given beyond what leaked.

        A method says in `needs_told` what it needs beside where the attacker is told the defense.
        """
        told: Needs = getattr(self.method, "needs_told", Needs()) if self.knows == "defense" else Needs()
        return needs_of(self.method) | needs_of(self.server) | told
