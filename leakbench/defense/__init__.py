"""Parts of a defense: transforms of a signal, and the recipe that puts them at four stations."""

from leakbench.defense.facts import FactProbe, facts_at, phases
from leakbench.defense.recipe import Defense

__all__ = ["Defense", "FactProbe", "facts_at", "phases"]
