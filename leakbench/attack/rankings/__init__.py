"""Rankings: score hypotheses about a victim: candidates, classes, or values of an attribute."""
