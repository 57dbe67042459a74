"""`oven-controller kg`: the service's questions, asked offline."""
