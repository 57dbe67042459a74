"""Answers questions about long contexts: a strong model, the supervisor, writes programs that pass parts of the context
to a cheap worker model.

`run` and `arun` (orchestrator.py) run this loop in the sandbox, with limits and logs. A run can be resumed. The default
settings and the log format are those of the project Supervisor Distillation, so that results can be compared."""
