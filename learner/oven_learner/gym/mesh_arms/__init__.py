"""Arms that are the controller itself: the real mesh and the installed agents, in the trainer's process."""
