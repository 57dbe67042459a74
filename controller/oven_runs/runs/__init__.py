"""A run on disk: its folder, its log and spool, and readers of both."""
