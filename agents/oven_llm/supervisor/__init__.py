"""A strong model writes programs over a long context, and a cheap worker model reads the parts.

`run` and `arun` (orchestrator.py) run the loop in the sandbox, with caps, logs and resuming.
"""
