"""Environments that a policy acts in by tools, and the recorder of what it did there."""
