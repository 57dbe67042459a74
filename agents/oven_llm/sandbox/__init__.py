"""Runs model-written Python code in a sandboxed child process, never in this process."""
