"""Measures of the reward committee and its judges."""
