"""What the monitor shows, independent of the terminal: views, metrics, decisions, charts and texts."""
