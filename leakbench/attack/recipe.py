"""An attack: a method, and what the server does to the model."""

from __future__ import annotations

from typing import Annotated, Literal, Protocol, runtime_checkable

from leakbench.answers import Ranking, Reconstruction
from leakbench.attack.methods.analytic import AnalyticFc
from leakbench.attack.methods.autoleak import AutoLeak
from leakbench.attack.methods.feature_inversion import FeatureInversion
from leakbench.attack.methods.gradient_matching import GradientMatching
from leakbench.attack.methods.learning_to_invert import LearningToInvert
from leakbench.attack.methods.lmmse import Lmmse
from leakbench.attack.methods.rows import Rows
from leakbench.attack.methods.spear import Spear
from leakbench.attack.needs import Needs, needs_of
from leakbench.attack.rankings.candidates import Candidates
from leakbench.attack.servers.server import Honest, Server
from leakbench.attack.servers.slot import SERVERS
from leakbench.federated.view import View
from leakbench.part import Text, part
from leakbench.recipe import slot
from leakbench.types import Generators

__all__ = ["METHODS", "Attack", "Method"]


@runtime_checkable
class Method(Protocol):
    """Turns observed gradients or updates into a reconstruction."""

    def __call__(self, views: tuple[View, ...], rngs: Generators) -> Reconstruction | Ranking:
        """Answer for the V victims that all views show; victim v draws from rngs[v]."""


METHODS: dict[str, type[Method]] = {
    "gradient_matching": GradientMatching,
    "analytic_fc": AnalyticFc,
    "feature_inversion": FeatureInversion,
    "candidates": Candidates,
    "lmmse": Lmmse,
    "rows": Rows,
    "spear": Spear,
    "learning_to_invert": LearningToInvert,
    "autoleak": AutoLeak,
}


@part
class Attack:
    """The recipe of an attack.

    knows: what the attacker knows of the defense: nothing (`oblivious`), or its recipe (`defense`), whose deterministic part it
    then runs on its guesses.
    leak_model: the network that leaks in the `paper` protocol, where a part of the method needs another than the usual one.
    """

    title: Text
    cite: Text
    method: Annotated[Method, *slot("method", METHODS)]
    note: str = ""
    knows: Literal["oblivious", "defense"] = "oblivious"
    server: Annotated[Server, *slot("server", SERVERS)] = Honest()
    leak_model: str = ""

    @property
    def needs(self) -> Needs:
        """What its method and its server have to be given beyond what leaked.

        A method says in `needs_told` what it needs beside where the attacker is told the defense.
        """
        told: Needs = getattr(self.method, "needs_told", Needs()) if self.knows == "defense" else Needs()
        return needs_of(self.method) | needs_of(self.server) | told
