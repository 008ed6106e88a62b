"""Tables of accounting: printed epsilons and rounds, what the claim's own formula gives, and what a tight accountant gives for the same steps."""
