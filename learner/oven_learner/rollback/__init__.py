"""Rollback: copies of a run in memory or its checkpoints on disk, and how often they are taken."""
