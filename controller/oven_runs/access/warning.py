"""Warnings of who reads a run, for people."""

from __future__ import annotations

import sys

from oven_core.terminal_text import clean


def warn(line: str) -> None:
    """On stderr, no matter who reads the log."""
    print(f"warning: {clean(line)}", file=sys.stderr, flush=True)
