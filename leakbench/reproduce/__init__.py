"""Tables of papers and of our own: which cells they are made of, what is claimed of them, and what was measured."""
