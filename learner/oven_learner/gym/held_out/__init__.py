"""A seventh set of held-out faults, written without a look at any controller."""
