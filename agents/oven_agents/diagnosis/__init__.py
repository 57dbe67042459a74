"""Diagnoses a run from its log: what is wrong, since which step, how certain that is, and what to change.

All functions are pure and import neither torch nor numpy. The commands `supervise diagnose` and `kg diagnose` and the
coding agents' tool `diagnose` answer from `find_findings`."""
