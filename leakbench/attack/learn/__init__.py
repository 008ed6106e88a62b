"""How a part learns from public examples, and what a fit depends on."""
