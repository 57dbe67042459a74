"""Benches that need the learner; `oven-controller bench NAME` finds them by the entry points of `oven.benches`."""
