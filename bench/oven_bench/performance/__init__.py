"""Benches of latency, throughput and overhead, and of outages and faults: of agents, judges and the bus."""
