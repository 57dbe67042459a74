"""The arms: nothing, chance, fixed rules, remedies of the literature, and the controller itself."""
