"""Rankings: which of several hypotheses is true, candidates, classes or values of an attribute."""
