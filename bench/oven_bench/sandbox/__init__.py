"""Attacks on the sandbox, each shown to work without it, honest programs that must run in it, and its speed."""
