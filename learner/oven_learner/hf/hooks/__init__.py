"""Features of an attached trainer, one per module, called at the moments of each step."""
