"""Statistics of a window that several agents share."""
