"""The monitor's content, without a terminal: views, series, decisions, charts and cells."""
