"""Child processes: starting, guarding and supervising them, signals and terminals."""
