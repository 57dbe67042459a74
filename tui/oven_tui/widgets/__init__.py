"""Widgets of the dashboard. Each draws a MonitorView and changes nothing."""
