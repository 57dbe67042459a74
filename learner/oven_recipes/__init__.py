"""Training recipes, one a package; each names what it leaves out of the paper it follows."""
