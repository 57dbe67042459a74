"""Environments in which a policy acts through tool calls, and a recorder of its rollouts."""
