"""Traces of agents: what a policy saw, did and got at each step, and what teachers would have done there. No torch."""
