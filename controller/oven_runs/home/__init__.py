"""`$OVEN_HOME` and the folder of each run in it: its files, and a list of the runs."""
