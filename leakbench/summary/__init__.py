"""The results of a run: each leakage point with its limits, and the comparison of two runs."""
