"""Running Python that a language model wrote: a child process behind kernel walls, never `exec` in this process."""
