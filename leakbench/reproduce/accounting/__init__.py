"""Tables of accounting: printed epsilons and rounds, what their formula gives, and what a tight accountant gives for it."""
