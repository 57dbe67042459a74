"""The console script's entry point. Its imports happen inside a function, so that Ctrl-C during them is silent too."""

from __future__ import annotations

import gc
import sys


def run() -> None:
    """Run the command line (`oven_controller.cli.main.run`). Exit code 130 after Ctrl-C."""
    gc.set_threshold(50_000)  # most objects live until the end, so the usual 700 costs time and frees little
    try:
        from oven_controller.cli import main

        main.run()
    except KeyboardInterrupt:
        sys.exit(130)
