"""Manage `$OVEN_HOME`: the folder of each run with its files, and the list of runs."""
