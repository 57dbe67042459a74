"""A run's stack: how its processes start and end, and the output of `up`."""
