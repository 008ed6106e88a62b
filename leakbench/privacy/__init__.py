"""Epsilon: what a paper claims, what is valid for the mechanism as executed, and against whom."""
