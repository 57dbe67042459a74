"""The learner's client: it publishes observations, and applies and answers the mesh's decisions."""
