"""Loaders of graphs in other formats: each takes a path and yields rows.

A loader is an entry point of `oven.kg_loaders`, named by the files' suffix. Files are data from strangers: nothing in
them is executed, and what they cost is bounded.
"""
