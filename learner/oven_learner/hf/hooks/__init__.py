"""Hooks that add features to an attached trainer. The callback calls them at fixed points of each step."""
