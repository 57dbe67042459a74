"""What networkx sees of a large graph, and the functions of the backend `oven_csr`."""
