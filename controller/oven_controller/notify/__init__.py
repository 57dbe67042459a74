"""Notifications about a run: triggers, rate limits and delivery."""
