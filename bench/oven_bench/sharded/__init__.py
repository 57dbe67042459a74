"""Sharded models on several ranks on a CPU: the cost of gauges, and drills."""
