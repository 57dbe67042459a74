"""Attaches to frameworks without a change of the user's script."""
