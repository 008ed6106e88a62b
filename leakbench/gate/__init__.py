"""A gate for CI: compare a run with a baseline, and fail if resilience fell."""
