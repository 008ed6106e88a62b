"""What a cell does: train the federation, leak, attack, and put the pieces together."""
