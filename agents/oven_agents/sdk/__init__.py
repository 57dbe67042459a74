"""The SDK: what an agent is, what it sees, and its session in a run."""
