"""Supervisors measured on tasks: runs, grids, baselines, and rows to train a smaller one on."""
