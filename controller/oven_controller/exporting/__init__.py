"""Export a run to other tools: experiment trackers, files, and monitoring systems."""
