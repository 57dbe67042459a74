"""Rollback to snapshots in memory or checkpoints on disk, and the schedules for taking them."""
