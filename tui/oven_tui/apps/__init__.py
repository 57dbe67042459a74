"""The monitor's other applications: the list of runs, several runs over each other, a recorded run that is played."""
