"""The agents that ship with Oven Controller, one per file."""
