"""One run on one machine: its folder, its settings, its server and processes, and readable views of its log."""
