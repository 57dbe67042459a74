"""Trace files of other projects: read into the project's records and written from them."""
