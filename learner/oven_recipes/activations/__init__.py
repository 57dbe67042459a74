"""Tools that capture a model's activations, store them, and inject them into an oracle that answers questions."""
