"""An attack: a method, and what the server does to the model."""

from __future__ import annotations

from typing import Annotated, Literal, Protocol, runtime_checkable

from leakbench.attack.analytic import AnalyticFc
from leakbench.attack.candidates import Candidates
from leakbench.attack.gradient_matching import GradientMatching
from leakbench.attack.labels import Given
from leakbench.attack.pooling import TABLE_PARTS
from leakbench.attack.server import SERVERS, Honest, Server
from leakbench.federated.leakage import View
from leakbench.recipe import slot
from leakbench.types import Generators, Ranking, Reconstruction, Text, part

__all__ = ["METHODS", "RANKINGS", "Attack", "Method"]


@runtime_checkable
class Method(Protocol):
    """Turns what leaked into an answer."""

    def __call__(self, views: tuple[View, ...], rngs: Generators) -> Reconstruction | Ranking:
        """Answer for the V victims that all views show; victim v draws from rngs[v]."""


RANKINGS: dict[str, type[Method]] = {"candidates": Candidates}
"""Methods that answer with a Ranking; only they are shown the candidates."""

METHODS: dict[str, type[Method]] = {
    "gradient_matching": GradientMatching,
    "analytic_fc": AnalyticFc,
    **RANKINGS,
}


@part
class Attack:
    """The recipe of an attack.

    knows: what the attacker is told of the defense: nothing (`oblivious`), or its recipe (`defense`), whose deterministic part it
    then runs on its guesses.
    """

    title: Text
    cite: Text
    method: Annotated[Method, *slot("method", METHODS)]
    note: str = ""
    knows: Literal["oblivious", "defense"] = "oblivious"
    server: Annotated[Server, *slot("server", SERVERS)] = Honest()

    @property
    def labels_given(self) -> bool:
        """Whether the method takes the victims' labels as known, so that the threat model has to grant them."""
        return isinstance(self.method, GradientMatching) and isinstance(self.method.labels, Given)

    @property
    def needs_table(self) -> bool:
        """Whether a part of the method knows only tables."""
        if not isinstance(self.method, GradientMatching):
            return False
        return any(isinstance(p, TABLE_PARTS) for p in (self.method.space, self.method.start, self.method.pooling))
