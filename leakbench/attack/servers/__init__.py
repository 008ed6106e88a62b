"""Slot `server`: changes that a malicious server makes to the model before it sends it."""
