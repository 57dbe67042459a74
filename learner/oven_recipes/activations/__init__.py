"""Activations of a model's blocks: captured, stored, and put into the passes of an oracle that answers about them."""
