"""The prior service: its endpoints, and the process that serves them on the bus."""
