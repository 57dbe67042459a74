"""The command line. Each file has one group of commands. A command imports heavy packages only when it runs."""
