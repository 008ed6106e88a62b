"""Parts of an attack: one file per slot, and the recipe that chooses among them."""

from leakbench.attack.recipe import Attack

__all__ = ["Attack"]
