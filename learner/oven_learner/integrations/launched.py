"""Installs what `oven-controller run` asks for by environment variables. Nothing heavy is imported before the script
itself imports it."""

from __future__ import annotations

import os

TAP = "OVEN_TAP"
"""Environment variable of `run --tap`."""


def install() -> None:
    """Install the hooks. Called once, at the start of the process."""
    if os.environ.get(TAP) == "1":
        from oven_learner.tap.loggers import install as install_tap

        install_tap()
