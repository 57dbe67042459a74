"""The agent process: loads agents, connects them to a run, and queries the knowledge graph."""
