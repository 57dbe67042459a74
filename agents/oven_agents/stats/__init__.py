"""Statistics over an agent's window, shared by several agents."""
