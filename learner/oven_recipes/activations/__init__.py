"""Activations of a model's blocks: captured, stored, and injected into an oracle that answers questions about them."""
