"""Benches that need nothing but the controller; `oven-controller bench NAME` finds them by their entry points."""
