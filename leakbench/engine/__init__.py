"""Gradients of many examples at once: networks that are a chain of layers, as products of matrices instead of autograd's graph."""
