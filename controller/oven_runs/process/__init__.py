"""Tools to start, guard and supervise child processes, and to handle signals and terminals."""
