"""A run's log, diagnosed: alarms of plain statistics, programs that a model writes over them, and a typed answer whose
evidence the host computes again."""
