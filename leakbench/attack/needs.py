"""The needs of an attack's parts in addition to the observed updates: the experiment provides them, the threat model names them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from leakbench.models.language import LanguageModel

__all__ = ["IMAGE", "KINDS", "PLAIN", "TABULAR", "TEXT", "Needs", "ReadsParameters", "needs_of"]

IMAGE, TABULAR, TEXT = "image", "tabular", "text"

KINDS = (IMAGE, TABULAR, TEXT)
"""Kinds of data, as `leakbench.data.dataset.Dataset.kind` names them."""

PLAIN = (IMAGE, TABULAR)
"""The kinds whose inputs are numbers in [0, 1]; those of texts are numbers of tokens."""


@dataclass(frozen=True)
class Needs:
    """The needs of a part.

    A part declares them in the class attribute `needs: ClassVar[Needs]`, or in a property if they depend on its fields. A part
    without `needs` needs nothing.

    Args:
        candidates: The candidates of a ranking.
        labels: The true labels of the victims (an oracle).
        logits: The logits of the victims under the sent network (an oracle).
        alone: Updates of one example each, not of a batch.
        statistics: Statistics of batch normalisation that a guess should have, see `leakbench.experiment.statistics`.
        public: Largest number of public examples that the part reads.
        classes: A network that answers with classes.
        kinds: The kinds of data that the part can attack; those that all parts of an attack have in common are left.
    """

    candidates: bool = False
    labels: bool = False
    logits: bool = False
    alone: bool = False
    classes: bool = False
    statistics: bool = False
    public: int = 0
    kinds: tuple[str, ...] = KINDS

    @property
    def table(self) -> bool:
        """Whether only tables can be attacked."""
        return self.kinds == (TABULAR,)

    @property
    def text(self) -> bool:
        """Whether only texts can be attacked."""
        return self.kinds == (TEXT,)

    def __or__(self, other: Needs) -> Needs:
        """Return the needs of both."""
        most = {name: max(mine, getattr(other, name)) for name, mine in vars(self).items() if name != "kinds"}
        return Needs(**most, kinds=tuple(kind for kind in self.kinds if kind in other.kinds))


@runtime_checkable
class ReadsParameters(Protocol):
    """A method that reads the gradients of some parameters of a language model, and finds nothing without them."""

    def missing(self, model: LanguageModel, trained: Sequence[str]) -> str:
        """Return what the method reads and a network does not train, empty for nothing.

        Args:
            model: The network.
            trained: Names of the trained parameters.
        """
        ...


def needs_of(part: Any) -> Needs:
    """Return the needs of a part and of all parts in its fields.

    A part with the class attribute `skipped`, such as a stage of an ensemble, is left out where it does not run, so that it does
    not limit the kinds of data.
    """
    needs: Needs = getattr(part, "needs", Needs())
    if dataclasses.is_dataclass(part):
        for field in dataclasses.fields(part):
            value = getattr(part, field.name)
            for inner in value if isinstance(value, tuple) else (value,):
                needs = needs | needs_of(inner)
    return dataclasses.replace(needs, kinds=KINDS) if getattr(part, "skipped", False) else needs
