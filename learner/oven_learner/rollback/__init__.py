"""Rollback, from copies in memory or checkpoints on disk, and the schedule for taking them."""
