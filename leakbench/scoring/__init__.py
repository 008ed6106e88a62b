"""Score an attacker's reconstructions and rankings against the truth: one row for each example."""
