"""One widget a file; each draws a MonitorView and changes nothing."""
