"""What opens above the dashboard: a decision with its ballot, and help."""
