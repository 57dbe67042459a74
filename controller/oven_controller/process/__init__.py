"""Processes: starting, guarding and supervising one, and what it does with signals and terminals."""
