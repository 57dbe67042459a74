"""Agents over a finished run: what they would have voted, what would have been decided, and what happened instead."""
