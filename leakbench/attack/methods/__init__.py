"""Methods: each reconstructs images or records from observed gradients; `autoleak` is the worst case over several."""
