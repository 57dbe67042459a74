"""The prior service: its endpoints, and the process that answers on the bus."""
