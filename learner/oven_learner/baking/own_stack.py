"""A stack of a script's own: `up --no-learner` as a child, which ends when the script does, however that ends.

The child holds the read end of a pipe as its standard input. Where the script is killed the kernel closes the other
end, and the stack ends as it does at Ctrl-C; where the stack is killed the script trains on.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from oven_core.errors import ConfigError, ProcessError

READY_S = 120.0
"""So long a stack may take until it waits for its learner."""
GRACE_S = 30.0
"""So long it may take to end: its log is brought home in it."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a stack is, in the words of `up --no-learner --json`."""

    run: str
    folder: Path
    environment: Mapping[str, str]


class OwnStack:
    """Started at once, and waited for when it is needed: it gets ready while the script builds its trainer."""

    def __init__(self, settings: Mapping[str, Any], run: str | None = None, resume: bool = False) -> None:
        """`settings` as a configuration file has them. `run` names the run, `resume` continues that one."""
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115  it lives as long as the child
        self._place: Place | None = None
        with tempfile.NamedTemporaryFile("w", suffix=".json", delete=False) as config:
            json.dump(settings, config)
        self._config = Path(config.name)
        command = [sys.executable, "-P", "-m", "oven_controller.cli.main", "up", "--no-learner", "--json"]
        command += ["--until-eof", "--config", config.name]
        command += [*(["--run", run] if run else []), *(["--resume"] if resume else [])]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            start_new_session=True,  # Ctrl-C is the script's, which ends its training and then the stack
        )

    def place(self) -> Place:
        """Once it waits for a learner. Raises ConfigError or ProcessError with what it said where it ended instead."""
        if self._place is None:
            line = self._first_line()
            said = json.loads(line)
            self._place = Place(said["run"], Path(said["folder"]), said["environment"])
            self._config.unlink(missing_ok=True)
        return self._place

    @property
    def pid(self) -> int:
        """Of `up`."""
        return self._process.pid

    def end(self) -> str:
        """Let it end as at Ctrl-C, and wait for that. The run's summary, or what else it said; nothing the second
        time."""
        if self._errors.closed:
            return ""
        self._config.unlink(missing_ok=True)
        try:
            out, _ = self._process.communicate(timeout=GRACE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()  # its own children follow it
            out, _ = self._process.communicate()
        said = _summary(out or "") or self._said()
        self._errors.close()
        return said

    def _first_line(self) -> str:
        out = self._process.stdout
        assert out is not None
        ready, _, _ = select.select([out], [], [], READY_S)
        line = out.readline() if ready else ""
        if line:
            return line
        said = self.end()
        if not ready:
            raise ProcessError(f"the stack was not ready within {READY_S:g} s; it said:\n{said}")
        code = self._process.returncode
        wrong = ConfigError if code == ConfigError.exit_code else ProcessError
        raise wrong(f"the stack did not start (exit code {code}):\n{said}")

    def _said(self) -> str:
        self._errors.seek(0)
        return self._errors.read().strip()[-2000:]


def _summary(out: str) -> str:
    """Of what `up --json` prints: one object where it begins, one at the end."""
    for line in reversed(out.splitlines()):
        with contextlib.suppress(json.JSONDecodeError):
            return "\n".join(json.loads(line).get("summary", ()))
    return ""


@contextlib.contextmanager
def within(place: Place) -> Iterator[None]:
    """With the stack's environment as this process's, where attached trainers and judges look for it."""
    before = {name: os.environ.get(name) for name in place.environment}
    os.environ.update(place.environment)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
