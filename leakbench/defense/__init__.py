"""Parts of a defense: transforms of a signal, and the recipe that puts them at four stations."""

from leakbench.defense.recipe import Defense, facts

__all__ = ["Defense", "facts"]
