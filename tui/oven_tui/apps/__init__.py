"""The monitor's other applications: the list of runs, the overlay of several runs, and the player of a recorded run."""
