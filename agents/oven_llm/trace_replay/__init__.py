"""Trace replay: asks teachers what they would do at a policy's own steps, and makes preference pairs of the replies."""
