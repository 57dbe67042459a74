"""Training recipes, one per package. Each lists its differences from the paper that it follows."""
