"""Answers from a graph: diagnosis, judgement of a change, curriculum and queries. Pure functions."""
