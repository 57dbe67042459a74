"""`import`: last month's training as a run. A reader for each format, by entry points of `oven.importers`; one writer."""
