"""Widgets of the dashboard: each draws a MonitorView and changes nothing."""
