"""The connection to NATS: publish, request, append to a run's log and read it."""
