"""`import`: last month's training as a run. A reader a format, by entry points of `oven.importers`, and one writer."""
