"""Samples of completions that the monitor shows. They are converted outside the training thread."""
