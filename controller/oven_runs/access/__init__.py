"""Access to a run's log, on this machine or another, during the run and afterwards."""
