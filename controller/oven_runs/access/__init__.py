"""Access to the log of a run: on this machine or another, while it runs and afterwards."""
