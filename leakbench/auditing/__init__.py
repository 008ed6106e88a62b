"""The audit of a defense: checks of its code on neighbouring inputs, and a lower bound on its epsilon from trials."""
