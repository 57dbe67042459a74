"""Sampled completions: the samples of a step, and their conversion outside the training thread."""
