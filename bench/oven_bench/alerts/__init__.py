"""Alerts on simulated runs: how soon after a fault began, and how often without one."""
