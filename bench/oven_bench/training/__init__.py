"""Benches of trainings: whether runs end better under the swarm than without it."""
