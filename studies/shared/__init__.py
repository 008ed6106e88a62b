"""What the scripts of this folder share: what they may be asked for, grids of cells, and rows in a CSV."""
