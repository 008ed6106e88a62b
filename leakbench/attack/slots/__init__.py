"""The slots of a search: the parts from which recipes of gradient matching and feature inversion choose."""
