"""A strong model that writes programs over a long context; a cheap worker reads the chunks.

`run` and `arun` (orchestrator.py) are the loop over the sandbox with caps, logs and resuming; `diagnosis/` asks about a
run's log by it.
"""
