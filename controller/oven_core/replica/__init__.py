"""The process of a mesh replica, and the history service."""
