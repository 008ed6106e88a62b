"""Gradients of many examples at once: networks that are a chain of layers, as products of matrices instead of autograd's graph."""

BEHAVIOUR = 1
"""Raised when gradients, or the noise that is added to them, change, see `leakbench.behaviour`."""
