"""Trials: the next steps played from one state with and without a change, and the better end kept."""
