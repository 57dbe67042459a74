"""Text for terminals: cleaned of control characters and wrapped."""
