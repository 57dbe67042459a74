"""The monitor: a fold over the log, drawn in the terminal. `view` and what it is made of import no textual."""
