"""Speed: each figure is compared with a reference for the same work, measured in turns on the same machine."""
