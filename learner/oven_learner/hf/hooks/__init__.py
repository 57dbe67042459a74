"""Features of an attached trainer. They are called at fixed points of each step."""
