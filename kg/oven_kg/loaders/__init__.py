"""Graphs in other people's formats. A loader is an entry point of `oven.kg_loaders`, named by the files' suffix: it
takes a path and yields rows. Files are data from strangers: nothing in them is executed, and what they cost is bounded.
"""
