"""Benchmarks of leakbench itself: its speed (`python -m benchmarks`), its scorers and sweeps (the scripts here)."""
