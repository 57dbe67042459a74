"""The graph: its records, the graph in memory, its lint, and a randomized control."""
