"""A strong model writes programs to process a long context, and a cheap worker model reads its parts.

`run` and `arun` (orchestrator.py) run the loop in the sandbox, with caps, logs and resuming.
"""
