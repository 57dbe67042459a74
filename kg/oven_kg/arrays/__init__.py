"""Graphs of millions of edges: sorted arrays in a memory-mapped folder, and the algorithms over them."""
