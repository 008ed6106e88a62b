"""From an attacker's answers to rows: reconstructions and rankings beside the truth, one row for each example."""
