"""The federation: partition, sampling, clients, rounds, and the points at which it leaks."""
