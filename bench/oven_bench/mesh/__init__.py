"""Benches of the mesh: replay, and reputations in a simulated swarm."""
