"""Containers' commands as processes on this machine: the same words, with folders and ports in place of volumes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from oven_runs.server.embedded_server import find_binary

PROGRAMS = {
    "python": f'"{sys.executable}"',
    "oven-controller": f'"{sys.executable}" -m oven_controller.cli.main',
    "nats-server": f'"{find_binary()}"',
}


def programs(folder: Path) -> str:
    """Write the images' programs into `folder`. Return a PATH that starts with it."""
    folder.mkdir()
    for name, command in PROGRAMS.items():
        (folder / name).write_text(f'#!/bin/sh\nexec {command} "$@"\n')
        (folder / name).chmod(0o755)
    return f"{folder}{os.pathsep}{os.environ['PATH']}"


class Containers:
    """Starts the commands of `stack`'s containers. `replacements` are pairs of a container's text and this machine's,
    applied in order."""

    def __init__(self, stack: Any, replacements: Sequence[tuple[str, str]]) -> None:
        self.stack = stack
        self._replacements = replacements
        self._path = programs(stack.folder / "bin")

    def here(self, text: str) -> str:
        for there, here in self._replacements:
            text = text.replace(there, here)
        return text

    def start(self, words: Sequence[str], environment: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
        local = {key: self.here(value) for key, value in (environment or {}).items()}
        process = subprocess.Popen(
            [self.here(word) for word in words],
            env=self.stack.env | local | {"PATH": self._path},
            cwd=self.stack.folder,
            text=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        self.stack.started.append(process)
        return process
