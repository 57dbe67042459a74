"""Benches of judges."""
