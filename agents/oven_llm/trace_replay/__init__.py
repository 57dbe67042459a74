"""Trace replay: what teachers would have done at a policy's own steps, and the preference pairs that follow."""
