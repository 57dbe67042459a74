"""Processes: starting them, ending them, and the order in which that happens."""
