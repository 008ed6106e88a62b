"""Limits of any attack at a leakage point: bounds on success rates from the noise, and a floor of the reconstruction error."""
