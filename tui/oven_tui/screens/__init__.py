"""Screens above the dashboard: decisions, help, questions, knobs, completions and the console."""
