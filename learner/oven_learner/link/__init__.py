"""The link between the learner and the bus, and the process that it runs in."""
