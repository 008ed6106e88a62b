"""How fast: each figure beside a reference that does the same work, measured in turns on the same machine."""
