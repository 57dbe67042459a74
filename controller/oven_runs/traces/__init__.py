"""Traces of agents: the states, actions and results of a policy, step by step."""
