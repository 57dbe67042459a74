"""Faults of a pretraining run, and what only looks like one."""
