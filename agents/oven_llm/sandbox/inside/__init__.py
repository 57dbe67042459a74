"""Modules that run inside the sandbox's child. They import the standard library and each other only, to start fast."""
