"""The console script. It imports the command line in a function, so that Ctrl-C is silent during imports too."""

from __future__ import annotations

import sys


def run() -> None:
    """Run the command line (`oven_controller.cli.main.run`); exit code 130 after Ctrl-C."""
    try:
        from oven_controller.cli import main

        main.run()
    except KeyboardInterrupt:
        sys.exit(130)
