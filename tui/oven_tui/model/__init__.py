"""The monitor's content, independent of the terminal: views, metrics, decisions, charts and text."""
