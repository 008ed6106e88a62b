"""A gate for CI: a run beside a baseline, and whether resilience fell."""
