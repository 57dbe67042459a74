"""A server of the Model Context Protocol, by which coding agents look at runs, and with --control act on them."""
