"""The null attacker: what a guess from public data alone gets, without any gradient."""
