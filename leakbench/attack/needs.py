"""The needs of an attack's parts in addition to the observed updates: the experiment provides them, the threat model names them."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

__all__ = ["Needs", "needs_of"]


@dataclass(frozen=True)
class Needs:
    """The needs of a part.

    A part declares them in the class attribute `needs: ClassVar[Needs]`, or in a property if they depend on its fields. A part
    without `needs` needs nothing.

    Args:
        candidates: The candidates of a ranking.
        labels: The true labels of the victims (an oracle).
        logits: The logits of the victims under the sent network (an oracle).
        table: Inputs that are table records.
        alone: Updates of one example each, not of a batch.
        public: Largest number of public examples that the part reads.
    """

    candidates: bool = False
    labels: bool = False
    logits: bool = False
    table: bool = False
    alone: bool = False
    public: int = 0

    def __or__(self, other: Needs) -> Needs:
        """Return the needs of both."""
        return Needs(**{name: max(mine, getattr(other, name)) for name, mine in vars(self).items()})


def needs_of(part: Any) -> Needs:
    """Return the needs of a part and of all parts in its fields."""
    needs: Needs = getattr(part, "needs", Needs())
    if dataclasses.is_dataclass(part):
        for field in dataclasses.fields(part):
            value = getattr(part, field.name)
            for inner in value if isinstance(value, tuple) else (value,):
                needs = needs | needs_of(inner)
    return needs
