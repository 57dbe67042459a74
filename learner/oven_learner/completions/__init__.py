"""Sampled completions of a step, converted for the monitor outside the training thread."""
