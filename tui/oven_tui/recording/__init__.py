"""Reads the log.jsonl of a run (first a quick preview, then the whole verified log), and plays it."""
