"""Screens above the dashboard: a decision with its ballot, and help."""
