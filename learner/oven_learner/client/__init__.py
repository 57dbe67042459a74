"""The learner's client. It publishes observations, applies the mesh's decisions, and reports their outcomes."""
