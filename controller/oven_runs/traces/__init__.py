"""Traces of agents: what a policy saw, did and received at each step, and what teachers would have done there."""
