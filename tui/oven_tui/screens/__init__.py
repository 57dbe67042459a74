"""Screens that open over the dashboard: decisions, help, questions, knobs, completions and the console."""
