"""The link between the learner and the bus, which runs in its own process."""
