"""Faults of a GRPO run, and what only looks like one."""
