"""A pretraining job of 55,000 parameters: bytes of the Python standard library's own sources."""
