"""The null attacker: what a guess from public data alone gets, without any gradient."""

BEHAVIOUR = 1
"""Raised when the baseline guess changes, see `leakbench.behaviour`."""
