"""Trace files of others: read into our records and written from them. An entry point of `oven.traces` each."""
