"""The experiment that this project's swarm comes from, whole: its agents, its consensus, and ours beside them."""
