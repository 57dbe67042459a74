"""Start a stack from a script: `up --no-learner` runs as a child process and ends with the script.

The child's standard input is a pipe. If the script is killed, the kernel closes the pipe, and the stack ends as on
Ctrl-C. If the stack is killed, the script continues training.
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
"""Timeout in seconds until the stack is ready for its learner."""
GRACE_S = 30.0
"""Timeout of the shutdown in seconds, including the copy of the log."""


@dataclass(frozen=True, slots=True)
class StackAddress:
    """The run, folder and environment of a stack, from `up --no-learner --json`."""

    run: str
    folder: Path
    environment: Mapping[str, str]


class OwnStack:
    """A stack in a child process. It starts in the background, so that the script can build its trainer meanwhile."""

    def __init__(self, settings: Mapping[str, Any], run: str | None = None, resume: bool = False) -> None:
        """`settings` are in the format of a configuration file. `run` names the run, and `resume` continues it."""
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115  it lives as long as the child
        self._address: StackAddress | None = None
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
            start_new_session=True,  # Ctrl-C goes to the script, which ends its training and then the stack
        )

    def address(self) -> StackAddress:
        """Wait until the stack is ready for a learner. If it ends instead, raises ConfigError or ProcessError with its
        output."""
        if self._address is None:
            announced = json.loads(self._first_line())
            self._address = StackAddress(announced["run"], Path(announced["folder"]), announced["environment"])
            self._config.unlink(missing_ok=True)
        return self._address

    @property
    def pid(self) -> int:
        """Process id of `up`."""
        return self._process.pid

    def end(self) -> str:
        """End the stack as on Ctrl-C, and wait. Returns the run's summary or other output; "" on further calls."""
        if self._errors.closed:
            return ""
        self._config.unlink(missing_ok=True)
        try:
            out, _ = self._process.communicate(timeout=GRACE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()  # its children end with it
            out, _ = self._process.communicate()
        output = _summary(out or "") or self._error_output()
        self._errors.close()
        return output

    def _first_line(self) -> str:
        out = self._process.stdout
        assert out is not None
        ready, _, _ = select.select([out], [], [], READY_S)
        line = out.readline() if ready else ""
        if line:
            return line
        output = self.end()
        if not ready:
            raise ProcessError(f"the stack was not ready within {READY_S:g} s; its output:\n{output}")
        code = self._process.returncode
        wrong = ConfigError if code == ConfigError.exit_code else ProcessError
        raise wrong(f"the stack did not start (exit code {code}):\n{output}")

    def _error_output(self) -> str:
        self._errors.seek(0)
        return self._errors.read().strip()[-2000:]


def _summary(out: str) -> str:
    """Return the summary from the output of `up --json`, which prints an object at the start and one at the end."""
    for line in reversed(out.splitlines()):
        with contextlib.suppress(json.JSONDecodeError):
            return "\n".join(json.loads(line).get("summary", ()))
    return ""


@contextlib.contextmanager
def within(address: StackAddress) -> Iterator[None]:
    """Set the stack's environment in this process during the context, for attached trainers and judges."""
    before = {name: os.environ.get(name) for name in address.environment}
    os.environ.update(address.environment)
    try:
        yield
    finally:
        for name in before:
            os.environ.pop(name, None)
        os.environ.update({name: value for name, value in before.items() if value is not None})
