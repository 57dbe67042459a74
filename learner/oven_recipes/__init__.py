"""Training recipes, one per package. A package's docstring says how the recipe differs from the paper it follows."""
