"""What no attack at a leakage point can do better than: the noise that was seen, and the floor of the error it leaves."""
