"""The core library: messages, the consensus mesh, signatures, the bus, and the process that runs a mesh replica."""
