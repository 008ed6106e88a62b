"""The audit of a defense: what its own code does to neighbouring inputs, and a lower bound on its epsilon from trials."""
