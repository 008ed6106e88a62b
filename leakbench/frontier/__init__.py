"""Select a defense and its setting: accuracy against valid epsilon and against the leak to the strongest attacker."""
