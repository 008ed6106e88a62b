"""A model and an update of one's own: from files or out of a training loop, attacked, and scored where the truth is known."""
