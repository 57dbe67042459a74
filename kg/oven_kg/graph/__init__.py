"""The graph of causes and remedies: its records, the graph in memory, and its lint."""
