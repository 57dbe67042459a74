"""A mesh replica's process and the history service."""
