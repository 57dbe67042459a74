"""The arms that need no mesh: nothing, chance, fixed rules and the remedies of the literature."""
