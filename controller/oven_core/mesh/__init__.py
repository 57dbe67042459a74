"""The consensus mesh: a pure function of one ordered log."""
