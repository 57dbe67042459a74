"""The link between the learner and the bus. A separate process is the bus client."""
