"""What runs inside the sandbox's child. It imports the standard library and its siblings alone, to start quickly."""
