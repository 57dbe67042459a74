"""The SDK for agents, and the agents that ship with Oven Controller, one a file."""
