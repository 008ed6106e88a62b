"""What a part of an attack has to be given beyond what leaked, so that the harness and the threat model can tell."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

__all__ = ["Needs", "needs_of"]


@dataclass(frozen=True)
class Needs:
    """A part says what it needs in a class attribute `needs: ClassVar[Needs]`; most need nothing and say nothing.

    A part whose need is the value of a field says it in a property.

    Args:
        candidates: The hypotheses of a ranking, with which a method answers.
        labels: The victims' true labels, the sent model's true answers to their inputs: oracles.
        logits: The victims' true labels, the sent model's true answers to their inputs: oracles.
        table: Inputs whose columns have a meaning.
        alone: One example behind what leaked, and no batch.
        public: How many public examples, at most.
    """

    candidates: bool = False
    labels: bool = False
    logits: bool = False
    table: bool = False
    alone: bool = False
    public: int = 0

    def __or__(self, other: Needs) -> Needs:
        """Return what either needs."""
        return Needs(**{name: max(mine, getattr(other, name)) for name, mine in vars(self).items()})


def needs_of(part: Any) -> Needs:
    """Return what a part and the parts it is made of need."""
    found: Needs = getattr(part, "needs", Needs())
    if dataclasses.is_dataclass(part):
        for field in dataclasses.fields(part):
            value = getattr(part, field.name)
            for inner in value if isinstance(value, tuple) else (value,):
                found = found | needs_of(inner)
    return found
