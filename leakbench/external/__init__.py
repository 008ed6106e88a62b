"""Attacks on updates of a user's own training: from files, a probe or a Flower app; scored if the truth is known."""
