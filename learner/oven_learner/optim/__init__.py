"""Measurements and settings of any torch optimizer, with a trainer around it or in one's own loop."""
