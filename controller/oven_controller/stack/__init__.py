"""A run's stack: its processes, their start and end, and what `up` prints."""
