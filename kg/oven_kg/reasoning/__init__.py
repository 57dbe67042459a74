"""Pure functions from a question and a graph to an answer."""
