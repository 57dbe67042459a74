"""Training recipes, one per package. Each names what it leaves out of the paper that it follows."""
