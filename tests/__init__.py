"""What leakbench is held to."""
