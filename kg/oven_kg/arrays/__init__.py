"""Graphs with millions of edges: sorted arrays in a memory-mapped folder, and algorithms on them."""
