"""The core that decides and transports: messages, the mesh, signatures, the bus and the replica that joins them."""
