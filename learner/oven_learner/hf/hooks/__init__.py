"""Features of an attached trainer, one per module, called at fixed points of each step."""
