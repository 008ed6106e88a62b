"""Learning from public examples: maps and networks that an attack fits, and the origin of a fit."""
