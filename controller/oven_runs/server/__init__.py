"""The nats-server that a run starts, and cluster configuration."""
