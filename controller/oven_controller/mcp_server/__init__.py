"""A server of the Model Context Protocol. Through it coding agents can inspect runs and, with --control, act on
them."""
