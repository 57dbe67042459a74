"""The monitor: it reads a run's log and shows the run in the terminal. `model` does not import textual."""
