"""Preference pairs of teachers whose skill is known: their share of right ones, and what their test finds."""
