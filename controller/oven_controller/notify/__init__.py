"""Notifications of a run: what is worth a message, how often one is sent, and how it gets there."""
