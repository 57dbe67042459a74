"""Modules of the sandboxed child. To start fast, they import only the standard library, frames.py and each other."""
