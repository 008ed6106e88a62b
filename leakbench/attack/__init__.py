"""Parts of an attack: one file per slot, and the recipe that chooses among them."""

from leakbench.attack.recipe import Attack, attack_on

__all__ = ["Attack", "attack_on"]
