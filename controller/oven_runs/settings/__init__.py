"""The settings of a run, and the files that they are read from."""
