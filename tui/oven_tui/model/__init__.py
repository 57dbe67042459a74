"""What the monitor shows, without a terminal: views, series, decisions, charts and cells."""
