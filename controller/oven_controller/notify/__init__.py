"""Notifications about a run: which events cause a message, how often messages are sent, and how."""
