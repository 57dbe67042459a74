"""Loaders of graphs in other formats: each reads a file, or a folder, and yields batches of nodes and edges.

A loader is an entry point of `oven.kg_loaders` by the format's name: a function of an `Input` and of `Options`. Files
are data from strangers: nothing in them is executed or fetched, and what they cost is bounded.
"""
