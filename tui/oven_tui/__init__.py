"""The monitor's place (docs/roadmap.md): a fold over the log, drawn in the terminal. Nothing is here yet."""
