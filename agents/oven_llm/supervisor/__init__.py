"""Answers questions about long contexts: a strong model writes programs, and a cheap worker model reads the parts.

`run` and `arun` (orchestrator.py) run this loop in the sandbox, with limits and logs. A run can be resumed."""
