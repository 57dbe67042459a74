"""Loaders for graphs in other formats. Each reads a file and yields batches of nodes and edges.

A loader is an entry point in `oven.kg_loaders`, named after its format. It is a function of a `GraphFile` and
`LoaderOptions`. Files are untrusted, so loaders never execute or fetch their content, and limit memory and time.
"""
