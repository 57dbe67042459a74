"""Environments in which a policy acts by tool calls, and a recorder of its rollouts."""
