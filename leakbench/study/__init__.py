"""Sweeps: the cells of a grid, measured by an engine, each once, and merged into two tables."""
