"""Epsilon: what a paper claims, what is valid for the mechanism as executed, and against whom."""

BEHAVIOUR = 2
"""Raised when epsilons change, see `leakbench.behaviour`."""
