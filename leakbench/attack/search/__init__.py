"""Tools of searches: optimisers and restarts for many victims at once, coordinates, Gaussian priors, and counts of labels."""
