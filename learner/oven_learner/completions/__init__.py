"""Samples of completions for the monitor. They are converted outside the training thread."""
