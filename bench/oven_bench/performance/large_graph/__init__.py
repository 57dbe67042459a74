"""What knowledge graphs cost: ours against plain networkx, and the service over NATS."""
