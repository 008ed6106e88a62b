"""Digits of 8 x 8 pixels, told apart by a small network in a federation."""
