"""The agent SDK: the agent interface, the window that an agent reads, and its session in a run."""
