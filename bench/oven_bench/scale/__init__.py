"""`bench scale`: the controller's cost at 1,000 ranks and 70 billion parameters, from costs measured on one machine."""
