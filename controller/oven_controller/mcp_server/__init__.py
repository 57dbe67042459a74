"""A Model Context Protocol server that lets coding agents inspect runs and, with --control, act on them."""
