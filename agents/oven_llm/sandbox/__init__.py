"""Runs Python code that a language model wrote: in a child process that the kernel confines, never by `exec` here."""
