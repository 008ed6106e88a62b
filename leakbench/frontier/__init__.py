"""Which defense, at what setting: accuracy against valid epsilon and against what the strongest attacker gets."""
