"""Tables of papers and of our own: their cells or printed numbers, what is claimed of them, and what was measured or computed."""
