"""Loaders of graphs in other formats: each reads a file and yields batches of nodes and edges.

A loader is an entry point of `oven.kg_loaders`, named after its format: a function of an `Input` and of `Options`.
Files come from strangers: nothing in them is executed or fetched, and the memory and time that they cost are bounded.
"""
