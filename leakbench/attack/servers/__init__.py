"""Slot `server`: what the server does to the model before the clients see it, one file a lie."""
