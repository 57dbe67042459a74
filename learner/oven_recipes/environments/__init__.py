"""Environments in which a policy acts by calling tools, and the recorder of its rollouts."""
