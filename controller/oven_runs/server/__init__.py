"""The nats-server that a run starts, and the configuration of a cluster of them."""
