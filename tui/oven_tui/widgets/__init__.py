"""The dashboard's widgets. Each draws a MonitorView without changing it."""
