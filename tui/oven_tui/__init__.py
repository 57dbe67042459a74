"""The monitor: a fold over the log, drawn in the terminal. `model` imports no textual."""
