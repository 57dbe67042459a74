"""Trace replay measured: teachers over real HTTP that fail, are billed to the token, and have a known skill."""
