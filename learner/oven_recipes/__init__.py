"""Training recipes, one per package. Each package lists its differences from the paper that it follows."""
