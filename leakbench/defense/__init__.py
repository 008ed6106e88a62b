"""Parts of a defense: transforms of a signal, and the recipe that puts them at four stations."""

from leakbench.defense.recipe import STATIONS, Defense, facts, without_noise

__all__ = ["STATIONS", "Defense", "facts", "without_noise"]
