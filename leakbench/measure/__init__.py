"""What is measured of an answer: scores outside the attacker, rows, intervals."""
