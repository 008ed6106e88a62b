"""How a search goes on: optimisers and restarts over many victims at once, coordinates, counts of labels."""
