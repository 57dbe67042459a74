"""The command line. Each file has one group of commands, which import heavy packages only when they run."""
