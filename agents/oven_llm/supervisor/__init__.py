"""Answers questions about long contexts: a strong model, the supervisor, writes programs that pass parts of the context
to a cheap worker model.

`run` and `arun` (orchestrator.py) run and log the programs in the sandbox. A run can be resumed. The default settings
and the log format are those of the project Supervisor Distillation, so that results can be compared."""
