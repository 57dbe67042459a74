"""An agent's process: loading agents, connecting them, and asking the knowledge graph."""
