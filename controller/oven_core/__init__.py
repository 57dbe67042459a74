"""What decides and what carries: messages, the mesh, signatures, the bus and the replica that joins them."""
